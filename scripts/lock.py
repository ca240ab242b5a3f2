"""Print the versions installed here as constraints for pip: `make lock`."""

from importlib.metadata import distributions


def main() -> None:
    """One line a package, without this one, and without a build's local label."""
    print("# What `make` installs, to the last version. Written by `make lock`.")
    found = {d.metadata["Name"]: d.version.partition("+")[0] for d in distributions()}
    for name in sorted(found, key=str.lower):
        if name.lower() not in {"tramfl", "pip", "setuptools"}:
            print(f"{name}=={found[name]}")


if __name__ == "__main__":
    main()
