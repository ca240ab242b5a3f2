"""What a scenario says: what is trained, where the data lies, how loaded the nodes are, and when to stop.

Every field has the paper's value as its default. The text under a field is also its entry in the reference of
settings, which `make docs` writes.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tramfl.notation import PAPER_VARIANCE_LIMIT, BadInput

Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
NotNegative = Annotated[float, Meta(ge=0)]
NoiseLevel = Annotated[float, Meta(ge=0, description="a noise level, a number of at least 0")]
Whole = Annotated[int, Meta(ge=1)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Codec = Literal["float32", "float16", "int8", "int4"]
ReadOut = Literal["last", "visit", "average"]
ACCURACY, LOSS = "accuracy", "loss"
"""The metrics that every row has room for."""
LOWER_IS_BETTER = (LOSS, "mae", "rmse")
Share = tuple[Annotated[float, Meta(gt=0, le=1)], Annotated[float, Meta(gt=0, le=1)]]


class Partition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the training data is divided among the nodes."""

    layout: str = "5-uneven"
    """A layout of the paper (3, 5, 10, 5-uneven), or iid, dirichlet, shard, pathological, or own."""
    held: str | None = None
    """A CSV file with the training samples per node (rows) and label (columns): for runs without training."""
    nodes: Whole | None = None
    """How many nodes, for the other layouts; a layout of the paper, or an own split, has its own number."""
    node_of_sample: str | None = None
    """own: a file with the number of the node that has each training sample; without it, the data must say it."""
    alpha: Positive = 0.5
    """dirichlet: concentration of the distribution; small means uneven."""
    min_partition_size: Annotated[int, Meta(ge=0)] = 10
    """dirichlet: the division is drawn again until every node has this many samples."""
    self_balancing: bool = False
    """dirichlet: give no more to a node that already has its even share of all samples."""
    shards_per_node: Whole = 2
    """shard: how many shards each node gets."""
    shard_size: Whole | None = None
    """shard: samples in a shard; without it, as many as `shards_per_node` leaves."""
    classes_per_node: Whole = 2
    """pathological: how many labels each node holds."""
    class_assignment: Literal["random", "deterministic", "first-deterministic"] = "first-deterministic"
    """pathological: which labels a node holds."""
    validation_share: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Part of each label's samples that a node keeps aside to measure its local loss."""


class Noise(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Predictions that are off by chance."""

    noise: NotNegative
    """Standard deviation of the logarithm of predicted over actual."""


class LoadModel(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What compute and bandwidth the nodes can spare, round by round or slot by slot."""

    kind: Literal["uniform", "constant", "heterogeneous", "ar1", "daily", "bursts", "trace", "replay"] = "uniform"
    """uniform (the paper's draws), constant, heterogeneous (constant, a share drawn for each node and link), ar1 (a
    load that lasts), daily (day and night), bursts (on and off), trace (a CSV file), or replay (a recorded run)."""
    clock: Literal["round", "slot"] = "round"
    """round: loads are drawn once a round and fixed while it lasts, as in the paper; slot: they change with time."""
    slot_seconds: Positive = 1.0
    """slot: how long a load stays as it is."""
    prediction: Literal["oracle", "last", "ewma", "ar1", "blend"] | NoiseLevel | Noise = "oracle"
    """What a policy sees: the loads themselves (oracle), a prediction from the past, or the loads with noise."""
    give_up: Literal["overdue", "slow"] | None = None
    """slot: a hop is given up, and its round decided again, once it is long overdue (overdue), or also as soon as its
    pace says that a round elsewhere would end much sooner, as real sites do it (slow). If not given, slow for express
    and overdue for other policies. A policy that knows the loads has no reason to give up, and does not."""
    flops: Positive | tuple[Positive, ...] = 10e12
    """r_i: FLOPS of each node when idle (one number for all, or one per node)."""
    bandwidth: Positive = 200e6
    """b_ij: bit/s of a free link."""
    compute_share: Share = (0.01, 1.0)
    """Range of u_i^k, the share of its FLOPS that a node can spare."""
    bandwidth_share: Share = (0.005, 1.0)
    """Range of u_ij^k, the share of its bandwidth that a link can spare."""
    memory: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """ar1: correlation between the load of one round, or slot, and the next."""
    period: Positive = 600.0
    """daily: rounds, or seconds with the slot clock, from one day to the next."""
    burst_length: Positive = 10.0
    """bursts: mean rounds, or seconds with the slot clock, that a burst of other work lasts."""
    burst_pause: Positive = 20.0
    """bursts: mean rounds, or seconds with the slot clock, between two bursts."""
    trace: str | None = None
    """replay: a rounds.jsonl to take the loads from; trace: a CSV file. Past its end it begins again."""
    trace_offset: NotNegative = 0.0
    """trace: the second of the trace at which the run begins."""

    @property
    def known(self) -> bool:
        """Whether a policy sees the loads themselves."""
        seen = self.prediction.noise if isinstance(self.prediction, Noise) else self.prediction
        return seen in ("oracle", 0)


class Cost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the virtual clock charges; computed from the model where not given."""

    flops_per_sample: Positive | None = None
    """M: FLOPs of forward and backward for one sample."""
    model_bits: Positive | None = None
    """D_M: bits of a model on its way."""


class Transit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a model is on its way from node to node, and where it is stored."""

    codec: Codec = "float32"
    """float32 (the weights as they are), or their change since the start of the run in fewer bits: float16, int8 or
    int4. D_M shrinks accordingly, also where `cost.model_bits` gives the size of a float32 model."""


class TrainingSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network and its optimiser."""

    network: str = "auto"
    """auto (by data set), digits-mlp, mnist-cnn, resnet18, or package.module:factory."""
    weights: str | None = None
    """A .safetensors or .pth file to start from."""
    image_size: Whole | None = None
    """Scale images to this many pixels a side before training."""
    batch_size: Whole = 32
    """Samples of one step."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """What follows the gradients."""
    learning_rate: Positive = 0.001
    """Step size, before the schedule."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """sgd: the share of the last step that the next one keeps."""
    weight_decay: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.0
    """How strongly weights are drawn to 0."""
    schedule: Literal["constant", "cosine", "step"] = "constant"
    """How the learning rate follows from the samples that the run has used so far."""
    schedule_samples: Whole | None = None
    """cosine: samples until the rate is 0; step: samples between two steps."""
    schedule_factor: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """step: what the rate is multiplied by at every step."""
    clip_norm: Positive | None = None
    """Scale gradients down to this norm where theirs is larger."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """The share of a label's weight in the loss that is spread over all classes."""
    calibration: Annotated[float, Meta(gt=0, le=1)] | None = None
    """A share eps: training adds log((1 - eps) p_c + eps / C) to the logit of label c, where p_c is its share of the
    round's samples, so that a node does not unlearn the labels that it lacks; 1 changes nothing. For cross-entropy
    where labels are what is balanced; of no effect elsewhere."""
    augmentation: tuple[Literal["flip", "crop"], ...] = ()
    """What happens to a batch of training images: mirrored left to right, shifted by up to an eighth of the side."""
    batch_norm: Literal["normal", "frozen-statistics"] = "normal"
    """frozen-statistics: batch norm uses the statistics it starts with, and they do not travel."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: the forward pass of training runs in bfloat16 where PyTorch deems it safe; weights stay as they are."""
    carry_optimizer: bool = False
    """Send the optimiser's state along with the model; the hop grows accordingly."""
    carry_momentum: bool = False
    """The older name of `carry_optimizer`."""
    divergence: Literal["warn", "stop"] = "warn"
    """What happens when the loss of a training is no longer a finite number."""
    workers: Annotated[int, Meta(ge=0)] = 0
    """Processes that read samples ahead, where the data is read as it is used; 0 reads in the training process."""
    device: str = "auto"
    """auto (CUDA, MPS, CPU) or a PyTorch device."""

    @property
    def carries_optimizer(self) -> bool:
        """Whether the optimiser's state travels with the model."""
        return self.carry_optimizer or self.carry_momentum


class Evaluation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When and on how much the model is tested; never charged to the virtual clock."""

    every: Whole = 1
    """1: test after every trained round; 2: after every second one; and so on."""
    subset: Whole = 1000
    """Test samples looked at first; the full set confirms a target."""
    test_samples: Whole | None = None
    """Use only this many test samples, for machines where the full set takes too long; all if not given."""
    readout: ReadOut = "last"
    """What is tested and delivered: the newest weights (last), the mean of the weights as the node received them and
    as it left them (visit), or a mean over all that the node has seen pass, the newest most (average). Training goes
    on from the newest weights. None of them sends anything."""
    metrics: tuple[str, ...] = ()
    """What is measured beside accuracy and loss: f1, auroc, mae, rmse, r2, or names of the app's own metrics."""


class Budget(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a run ends: at the last target or at the first limit; one limit at least must be set."""

    targets: tuple[Finite, ...] = ()
    """Values of `metric` on the test samples; the run ends once the last of them is reached."""
    metric: str = ACCURACY
    """What targets are of: accuracy, loss, or a metric of the evaluation or of the app."""
    direction: Literal["higher", "lower"] | None = None
    """Which values are better; without it, lower for loss, mae and rmse, and higher for all others."""
    rounds: Whole | None = None
    """At most this many rounds."""
    seconds: Positive | None = None
    """At most this many virtual seconds."""
    samples: Whole | None = None
    """At most this many samples trained."""
    held_for: Whole | None = None
    """k: a target is held while the mean of the last k tests is at it; the run then ends once all are held."""

    def __post_init__(self) -> None:
        if self.metric != ACCURACY:
            return
        for place, target in enumerate(self.targets):
            if not 0 <= target <= 1:
                wanted = ">= 0.0" if target < 0 else "<= 1.0"
                raise BadInput(f"Expected `float` {wanted} - at `$.targets[{place}]`")

    @property
    def lower_is_better(self) -> bool:
        """Whether a target is reached from above."""
        if self.direction is None:
            return self.metric in LOWER_IS_BETTER
        return self.direction == "lower"


class ExchangeSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How nodes that keep a model each exchange what they trained; docs/methods.md has the equations."""

    rule: str | None = None
    """fedavg, cyclic, gossip, gossip-async, feddc, pdmm, cmfd, or module:Class; without it one model travels."""
    local_steps: Whole = 8
    """K: batches that a node trains between two exchanges."""
    rate: Positive = 1.0
    """What `training.learning_rate` is multiplied by: the best rate differs from method to method."""
    wait_for: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of the nodes that a round waits for; those that come later drop what they did."""
    topology: Literal["full", "ring", "matching"] = "full"
    """gossip, pdmm, cmfd: everybody with everybody, a ring, or pairs that are drawn anew in every round."""
    server: Literal["node", "beside"] = "node"
    """fedavg: the server is on node 0, or beside the nodes with links of its own, drawn like theirs."""
    proximal: NotNegative = 0.0
    """fedavg: mu_p of FedProx, the pull towards the server's model; 0 is FedAvg."""
    dual_update: Literal["pdmm", "admm"] = "pdmm"
    """pdmm: how a dual follows the neighbour's message, at once or by half."""
    pull: Positive | None = None
    """pdmm: eta, the pull towards the duals; without it the variance-reduced form, which needs none."""
    permute_every: Whole = 1
    """feddc: rounds between two permutations of the models."""
    average_every: Whole = 10
    """feddc: rounds between two averages of all models."""
    matching: Literal["random", "load-aware"] = "random"
    """feddc: a drawn permutation, or the one whose slowest transfer is as quick as can be."""
    shared: str = "held-back"
    """cmfd: the unlabelled set that all nodes see: what they keep aside of their data (held-back), or a data set
    as in `dataset`, of which the training inputs are taken. Never test samples."""
    shared_samples: Whole = 100
    """cmfd: how many samples of it are used."""
    distil_passes: Whole = 1
    """cmfd: passes over the shared samples in a round."""


class Recording(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much of a round its row keeps."""

    rows: Literal["short", "whole"] = "short"
    """short: rows of more than 50 nodes keep the ten best candidates, and of more than 200 nodes rounded loads."""


class Acceptance(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a real site checks before it commits a round, on the samples that it keeps aside."""

    max_loss_ratio: Annotated[float, Meta(ge=1, le=1e9)] = 3.0
    """Weights are not committed whose loss is not finite, or more than this many times the loss before."""
    max_change_ratio: Annotated[float, Meta(ge=1, le=1e9)] | None = None
    """Weights are not committed either whose change (the L2 norm of the difference to the weights before) is above
    this many times the median of the last changes that the site accepted; not checked where it is not set."""
    arrivals: bool = False
    """Whether a site also checks weights that arrive, in both ways, and refuses them: against the last ones that it
    accepted, as they came, and, for their change, against what it trained from last, for each round since."""


class Scenario(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that determines a run."""

    name: str = "custom"
    """Shown in tables and folder names; the file's name where it is not given."""
    dataset: str = "digits"
    """digits, mnist, fashion-mnist, cifar10, npz:PATH, or package.module:object."""
    app: str | None = None
    """package.module:app, a tramfl.App: the user's own model, data and training; it comes before other keys."""
    policy: str = "load-aware"
    """load-aware, random, time-first, variance-first, tram, express, an installed one, or module:Class."""
    method: str | None = None
    """A name that `tramfl methods` lists: sets the keys of that method, where the file does not set them itself."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """The same seed gives the same run, to the last digit of its record."""
    variance_limit: NotNegative = PAPER_VARIANCE_LIMIT
    """V: the largest variance over labels of the samples used so far."""
    wait_seconds: Positive = 1.0
    """H: how long a skipped round waits."""
    max_samples_per_round: Whole | None = None
    """The most samples that a round trains, whatever the policy; no limit if not given."""
    max_round_in_hops: Positive | None = None
    """A round trains at most as long as this many hops take, and at least `wait_seconds`, whatever the policy: the
    quickest hop that there is, and training at the fastest node. The next round is then decided with new loads. No
    limit if not given."""
    balance: Literal["uniform", "population"] | dict[str, Positive] | None = None
    """The mix of labels to aim for: uniform (the paper's; so if not given), population (that of all data there is),
    or a table with a share for each label. V then bounds the variance of the counts relative to the mix."""
    visit_every_rounds: Whole | None = None
    """Every site that reports is visited once in this many rounds, even if the policy could do without it."""
    accept: Acceptance | None = None
    """Checks of real sites before they commit a round; none if not given. Simulations do not check."""
    partition: Partition = field(default_factory=Partition)
    exchange: ExchangeSettings | None = None
    loads: LoadModel = field(default_factory=LoadModel)
    cost: Cost = field(default_factory=Cost)
    transit: Transit = field(default_factory=Transit)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: Evaluation = field(default_factory=Evaluation)
    budget: Budget = field(default_factory=Budget)
    record: Recording = field(default_factory=Recording)

    @property
    def keeps_models(self) -> bool:
        """Whether every node keeps a model; otherwise one model travels."""
        return self.exchange is not None and self.exchange.rule is not None

    @property
    def method_name(self) -> str:
        """What tables and folders call the run by: its method, or its policy where it has no other."""
        return self.policy if self.method is None else self.method
