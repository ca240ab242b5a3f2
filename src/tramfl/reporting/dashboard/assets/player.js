// ---- player.js: which moment of the run is shown -----------------------------------------------------------------------
const SPEEDS = [0.00001, 0.0001, 0.001, 0.01, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const TYPICAL = 1.6; // seconds that a typical round takes on screen at first
const BEHIND = 30; // rounds: further behind, a live view leaps instead of hurrying

class Player {
  constructor() {
    this.at = 0; // rounds played; the fraction is of the round under way
    this.playing = false;
    this.following = true; // the end of the run, as it grows
    this.speed = 1;
    this.chosen = false; // whether the user chose the speed
  }
  reset() { Object.assign(this, { at: 0, playing: false, following: true, chosen: false }); }
  // A speed at which a typical round can be seen.
  suit(run) {
    if (this.chosen || !run.length) return;
    const step = Math.max(1, Math.floor(run.length / 99));
    const times = run.rows.filter((_, i) => i % step === 0).map((row) => row.duration).sort((a, b) => a - b);
    const wanted = times[Math.floor(times.length / 2)] / TYPICAL;
    this.speed = SPEEDS.reduce((best, each) => (Math.abs(Math.log(each / wanted)) < Math.abs(Math.log(best / wanted)) ? each : best));
  }
  play(run) {
    if (this.at >= run.length) this.at = 0;
    this.playing = true;
    this.following = false;
  }
  pause() { this.playing = this.following = false; }
  follow(run) {
    this.following = true;
    this.playing = false;
    this.at = Math.max(this.at, run.length - 1);
  }
  go(run, at) {
    this.at = Math.max(0, Math.min(run.length, at));
    this.following = false;
  }
  // Whether rounds are waiting to be shown.
  moves(run) { return (this.playing || this.following) && this.at < run.length; }
  tick(run, elapsed, running) {
    if (!this.moves(run)) return;
    if (this.following) {
      const behind = run.length - this.at;
      if (behind > BEHIND) this.at = run.length - 2;
      // A round takes as long as it can without falling behind the run.
      else this.at = Math.min(run.length, this.at + (elapsed / 1.2) * Math.max(1, behind));
      return;
    }
    let left = elapsed * this.speed;
    while (left > 0 && this.at < run.length) {
      const row = run.rows[Math.floor(this.at)], share = this.at - Math.floor(this.at);
      const duration = Math.max(row.duration, 1e-6), rest = (1 - share) * duration;
      if (left < rest) this.at += left / duration;
      else this.at = Math.floor(this.at) + 1;
      left -= rest;
    }
    if (this.at >= run.length) {
      this.playing = false;
      this.following = running;
    }
  }
}
