//! How many tokens to draft: the depth that makes decoding fastest on this machine, this model and this text.
//!
//! A cycle of depth `d` (draft `d` tokens, verify `1 + d` rows) takes `t(d)` and gives `1 + p1 + p1 p2 + ... + p1..pd` tokens
//! on average, `pi` being the chance that draft `i` is accepted after those before it were. The controller measures both and chooses the `d` with the
//! best quotient. Depth 0 is a plain decode step. When that is the best, speculation is *parked*: plain steps for a
//! cooldown, which doubles with each failure, then a short re-entry to see whether the text has changed.
//!
//! # How a request goes
//! 1. Plain steps are measured, unless an earlier request of the model left its times ([`ModelMemory`]).
//! 2. Depths are tried from 1 up, each only once it might pay, so that a hopeless text costs a few of the cheapest cycles.
//! 3. The best depth is used, with hysteresis. Now and then its best rival is probed, and the depth that was not measured for longest.
//! 4. A stint ends when the estimates say that it loses, or when the *ledger* is used up.
//!
//! # The ledger
//! Estimates can be wrong, so what speculation has gained and lost is also counted, in plain steps: tokens given, less
//! time taken over the time of a plain step. Gains are kept only up to a small allowance, losses end the stint when the
//! allowance is gone, and it is earned back at a small share of the tokens. That bounds the loss on any text by
//! `loss_allowance + loss_share * tokens` plain steps and the cycle that crosses the line, whatever the acceptance does.
//!
//! The controller has no clock, no randomness and no threads: the same reports give the same decisions.
//!
//! ```
//! # use std::time::Duration;
//! # use headstart_engine::mtp::controller::{CycleReport, Decision, DepthController};
//! let mut controller = DepthController::adaptive(3, None);
//! let step = Duration::from_millis(20);
//! // Nothing is known: a plain step is measured first.
//! while controller.next() == Decision::Plain {
//!     controller.report_plain(1, step, false);
//! }
//! let Decision::Speculate { depth } = controller.next() else { unreachable!() };
//! controller.report(CycleReport { depth, drafted: depth, accepted: depth, cut: false, elapsed: step, contended: false });
//! assert_eq!(controller.statistics().accepted, depth as u64);
//! ```

mod constants;
mod estimates;
mod report;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use constants::ControllerConstants;
use estimates::{Acceptance, Times};
pub use report::{ControllerStatistics, CycleReport};

/// The most drafts a cycle may have: a verify pass is at most 9 rows.
pub const MAX_DEPTH: usize = 8;

/// What the sequence does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A cycle: draft `depth` tokens (1 to [`MAX_DEPTH`]) and verify them.
    Speculate {
        /// Tokens to draft. Fewer may be drafted, when fewer are wanted.
        depth: usize,
    },
    /// A plain decode step.
    Plain,
}

/// What one request leaves to the next of the same model on the same machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelMemory {
    /// Milliseconds by depth, 0 where none was measured.
    times: Vec<f64>,
    acceptance: Acceptance,
    /// The depth last in use, 0 for none.
    depth: usize,
    cooldown: u64,
    /// Tokens that were left of a cooldown, when the request ended parked.
    parked: Option<u64>,
}

/// Plain steps until speculation is tried again.
#[derive(Clone, Copy, Debug)]
struct Parked {
    tokens_left: u64,
}

/// A few cycles at a depth for the sake of its estimate.
#[derive(Clone, Copy, Debug)]
struct Probe {
    depth: usize,
    cycles_left: u32,
}

/// Decides, for one sequence, between plain steps and cycles of some depth. See the [module](self).
#[derive(Clone, Debug)]
pub struct DepthController {
    constants: ControllerConstants,
    max_depth: usize,
    fixed: bool,
    decision: Decision,
    statistics: ControllerStatistics,
    times: Times,
    acceptance: Acceptance,
    /// Milliseconds reported so far: the controller's clock.
    now: f64,
    /// Steps in hand.
    ledger: f64,
    /// Whether the latest report was contended.
    contended: bool,
    /// The depth in use; 0 before the first.
    depth: usize,
    parked: Option<Parked>,
    /// The next cooldown.
    cooldown: u64,
    /// Plain steps to measure before anything else.
    plain_left: u32,
    /// Cycles at the latest plain step.
    plain_at: u64,
    probe: Option<Probe>,
    probe_cycles: u64,
    /// Cycles and the clock at the end of the latest probe.
    probed_at: (u64, f64),
    /// Cycles since the request's start or the latest re-entry.
    stint: u64,
    /// Decisions in a row by whose estimates speculation loses, clear ones twice.
    losing: u32,
}

impl DepthController {
    /// A controller that chooses among depths 0 to `max_depth` (brought into 1 to [`MAX_DEPTH`]). `memory` is what the model's latest
    /// request left; without it, the first steps are measurements.
    pub fn adaptive(max_depth: usize, memory: Option<&ModelMemory>) -> Self {
        Self::with_constants(max_depth, memory, ControllerConstants::default())
    }

    /// [`Self::adaptive`] with other constants.
    pub fn with_constants(
        max_depth: usize,
        memory: Option<&ModelMemory>,
        constants: ControllerConstants,
    ) -> Self {
        let max_depth = max_depth.clamp(1, MAX_DEPTH);
        let c = &constants;
        let mut acceptance = Acceptance::new(max_depth, c);
        let mut parked = None;
        if let Some(memory) = memory {
            acceptance = memory.acceptance.clone().resized(max_depth);
            acceptance.limit(c.memory_weight);
            parked = memory.parked.map(|left| Parked {
                tokens_left: left
                    .min(memory.cooldown / c.new_request_divisor.max(1))
                    .min(c.new_request_most),
            });
        }
        let times = memory.map_or(&[][..], |memory| &memory.times);
        let mut controller = Self {
            max_depth,
            fixed: false,
            decision: Decision::Plain,
            statistics: ControllerStatistics {
                depth_histogram: vec![0; max_depth + 1],
                judged_by_place: vec![(0, 0); max_depth],
                ..ControllerStatistics::default()
            },
            times: Times::new(max_depth, times),
            acceptance,
            now: 0.0,
            ledger: c.loss_allowance,
            contended: false,
            depth: memory.map_or(0, |memory| memory.depth.min(max_depth)),
            parked,
            cooldown: memory.map_or(c.cooldown_tokens, |memory| memory.cooldown),
            plain_left: 0,
            plain_at: 0,
            probe: None,
            probe_cycles: 0,
            probed_at: (0, 0.0),
            stint: 0,
            losing: 0,
            constants,
        };
        controller.decide();
        controller
    }

    /// A controller that always says `depth` (brought into 1 to [`MAX_DEPTH`]), and only counts.
    pub fn fixed(depth: usize) -> Self {
        let mut controller = Self::adaptive(depth, None);
        controller.fixed = true;
        controller.decide();
        controller
    }

    /// What to do now. The answer stays the same until the next report.
    pub fn next(&self) -> Decision {
        self.decision
    }

    /// Plain steps that are certain to come before speculation is tried again, where it is parked; 0 where it is not (a single plain
    /// step may still be asked for, to measure it). A parked sequence can join a batch for that long.
    pub fn parked_tokens(&self) -> u64 {
        self.parked.map_or(0, |parked| parked.tokens_left.max(1))
    }

    /// The request's counts so far.
    pub fn statistics(&self) -> &ControllerStatistics {
        &self.statistics
    }

    /// Milliseconds that a cycle of `depth` takes by the present estimate (0: a plain step); `None` before anything was measured.
    pub fn estimated_ms(&self, depth: usize) -> Option<f64> {
        self.times.get(depth, &self.constants)
    }

    /// What the next request of this model should know. `None` in fixed mode, which learns nothing.
    pub fn memory(&self) -> Option<ModelMemory> {
        (!self.fixed).then(|| ModelMemory {
            times: self.times.memory(),
            acceptance: self.acceptance.clone(),
            depth: self.depth,
            cooldown: self.cooldown,
            parked: self.parked.map(|parked| parked.tokens_left),
        })
    }

    /// Takes in a cycle and decides anew. Numbers beyond the depth are brought within it; a cycle without drafts is a plain step.
    pub fn report(&mut self, report: CycleReport) {
        let drafted = report.drafted.min(self.max_depth);
        if drafted == 0 {
            self.report_plain(1, report.elapsed, report.contended);
            return;
        }
        let accepted = report.accepted.min(drafted);
        let refused = accepted < drafted && !report.cut;
        let tokens = accepted + usize::from(!report.cut || accepted == drafted);
        self.count(drafted, accepted, refused);
        let ms = milliseconds(report.elapsed);
        self.now += ms;
        self.contended = report.contended;
        if !self.fixed {
            self.acceptance.observe(accepted, refused, &self.constants);
            self.settle(drafted, tokens as f64, (!report.contended).then_some(ms));
            if !report.contended && ms > 0.0 {
                self.times.observe(drafted, ms, self.now, &self.constants);
            }
            self.stint += 1;
            self.advance_probe();
        }
        self.decide();
    }

    /// Takes in `tokens` plain decode steps that took `elapsed` together, and decides anew. `contended` as in [`CycleReport::contended`];
    /// batched steps are.
    pub fn report_plain(&mut self, tokens: usize, elapsed: Duration, contended: bool) {
        if tokens == 0 {
            return;
        }
        let ms = milliseconds(elapsed);
        self.now += ms;
        let plain_steps = &mut self.statistics.depth_histogram[0];
        *plain_steps = plain_steps.saturating_add(tokens as u64);
        self.contended = contended;
        self.plain_at = self.statistics.cycles;
        if !self.fixed {
            if !contended && ms > 0.0 {
                let each = ms / tokens as f64;
                self.times.observe(0, each, self.now, &self.constants);
            }
            let c = &self.constants;
            // Time alone does not earn more than there was at the start.
            let earned = c.loss_share * tokens as f64;
            self.ledger += earned.min((c.loss_allowance - self.ledger).max(0.0));
            let steps = u32::try_from(tokens).unwrap_or(u32::MAX);
            self.plain_left = self.plain_left.saturating_sub(steps);
            if let Some(parked) = &mut self.parked {
                parked.tokens_left = parked.tokens_left.saturating_sub(tokens as u64);
            }
            self.advance_probe();
        }
        self.decide();
    }

    fn count(&mut self, drafted: usize, accepted: usize, refused: bool) {
        let statistics = &mut self.statistics;
        statistics.cycles += 1;
        statistics.drafted += drafted as u64;
        statistics.accepted += accepted as u64;
        statistics.depth_histogram[drafted] += 1;
        let judged = accepted + usize::from(refused);
        for (place, count) in statistics.judged_by_place[..judged].iter_mut().enumerate() {
            count.0 += 1;
            count.1 += u64::from(place < accepted);
        }
    }

    /// Enters a cycle into the ledger. `ms`: its own time, where that can be trusted.
    fn settle(&mut self, drafted: usize, tokens: f64, ms: Option<f64>) {
        let c = &self.constants;
        let Some(plain) = self.times.get(0, c) else {
            return;
        };
        let usual = self.times.get(drafted, c).unwrap_or(plain);
        // A stall is no fault of speculation.
        let ms = ms.map_or(usual, |ms| ms.min(usual * c.outlier_ratio));
        let gained = tokens - ms / plain + c.loss_share * tokens;
        self.ledger = (self.ledger + gained).min(c.ledger_most);
    }

    fn advance_probe(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        self.probe_cycles += 1;
        probe.cycles_left = probe.cycles_left.saturating_sub(1);
        if probe.cycles_left == 0 {
            self.probe = None;
            self.probed_at = (self.statistics.cycles, self.now);
        }
    }

    fn decide(&mut self) {
        self.decision = if self.fixed {
            Decision::Speculate {
                depth: self.max_depth,
            }
        } else {
            match self.choose() {
                0 => Decision::Plain,
                depth => Decision::Speculate { depth },
            }
        };
    }

    /// The depth of the next cycle, 0 for a plain step.
    fn choose(&mut self) -> usize {
        if self.still_parked() || self.plain_left > 0 {
            return 0;
        }
        let c = &self.constants;
        let Some(plain) = self.times.measured(0) else {
            self.plain_left = c.plain_samples.max(1);
            return 0;
        };
        let scores = self.scores();
        let best = self.best(&scores);
        let gain = scores[best] * plain;
        let losing = gain < c.park_margin;
        self.losing = match losing {
            true => self.losing + 1 + u32::from(gain < c.clear_loss),
            false => 0,
        };
        let judged = self.losing >= c.park_after && self.stint >= c.trial_cycles;
        let floor = match gain > c.overdraft_gain {
            true => -c.overdraft,
            false => 0.0,
        };
        if judged || self.ledger <= floor {
            self.park();
            return 0;
        }
        if self.stint >= c.success_cycles && !losing {
            self.cooldown = c.cooldown_tokens;
        }
        let kept = self.depth >= 1 && scores[best] <= scores[self.depth] * c.switch_gain;
        // A time that was measured once may be a stall: a depth is tried twice before it is judged.
        let tried = self.depth == 0 || self.times.samples(self.depth) != 1;
        if !kept && tried {
            self.depth = best;
        }
        // A probe whose time would be discarded is of no use.
        if self.probe.is_none() && !self.contended {
            self.probe = self.wanted_probe(&scores, gain);
        }
        self.probe.map_or(self.depth, |probe| probe.depth)
    }

    /// Tokens a millisecond by depth; 0 for depths that are not to be used yet.
    fn scores(&self) -> Vec<f64> {
        let c = &self.constants;
        let deepest = (1..=self.max_depth)
            .rev()
            .find(|&d| self.times.measured(d).is_some());
        // One step beyond what is known: what lies further is a guess upon a guess.
        let reach = deepest.unwrap_or(0) + 1;
        let score = |(depth, tokens): (usize, f64)| match self.times.get(depth, c) {
            Some(ms) if depth <= reach && ms > 0.0 => tokens / ms,
            _ => 0.0,
        };
        let tokens = self.acceptance.tokens_by_depth(c);
        tokens.into_iter().enumerate().map(score).collect()
    }

    /// The depth from 1 up with the best score, the shallowest among equals.
    fn best(&self, scores: &[f64]) -> usize {
        let better = |best, depth| {
            if scores[depth] > scores[best] {
                depth
            } else {
                best
            }
        };
        (2..=self.max_depth).fold(1, better)
    }

    /// A probe that is due, where speculation gains `gain` by the estimates.
    fn wanted_probe(&self, scores: &[f64], gain: f64) -> Option<Probe> {
        let c = &self.constants;
        let probe = |depth| {
            Some(Probe {
                depth,
                cycles_left: c.probe_cycles.max(1),
            })
        };
        let cycles = self.statistics.cycles;
        let doubtful = gain < c.doubtful_gain || self.times.samples(0) == 0;
        if doubtful && cycles - self.plain_at >= c.plain_check_cycles {
            return probe(0);
        }
        if gain < c.park_margin {
            return None;
        }
        let (cycles_then, then) = self.probed_at;
        let allowed =
            (self.probe_cycles as f64 + f64::from(c.probe_cycles)) <= c.probe_share * cycles as f64;
        if !allowed || cycles - cycles_then < u64::from(c.probe_every_cycles) {
            return None;
        }
        let current = scores[self.depth];
        let rival = |&depth: &usize| depth != self.depth && scores[depth] > 0.0;
        let near = |depth: usize| scores[depth] >= c.rival_score * current;
        let stale = |&depth: &usize| {
            let periods = if near(depth) { 1.0 } else { 2.0 };
            self.times.age(depth, self.now) >= periods * c.stale_after_ms
        };
        let oldest = (0..=self.max_depth)
            .filter(rival)
            .filter(stale)
            .max_by(|&a, &b| {
                let age = |depth| self.times.age(depth, self.now);
                age(a).total_cmp(&age(b))
            });
        if let Some(depth) = oldest {
            return probe(depth);
        }
        if self.now - then < c.rival_every_ms {
            return None;
        }
        let nearest = (1..=self.max_depth)
            .filter(rival)
            .max_by(|&a, &b| scores[a].total_cmp(&scores[b]))?;
        near(nearest).then(|| probe(nearest)).flatten()
    }

    fn park(&mut self) {
        self.parked = Some(Parked {
            tokens_left: self.cooldown,
        });
        self.cooldown = (self.cooldown * 2).min(self.constants.cooldown_most);
        self.statistics.parks += 1;
        self.probe = None;
    }

    /// Whether speculation stays parked. Ends the parking when it is time to try again.
    fn still_parked(&mut self) -> bool {
        let c = &self.constants;
        let Some(parked) = &mut self.parked else {
            return false;
        };
        if parked.tokens_left > 0 {
            return true;
        }
        let missing = c.reentry_allowance.min(c.loss_allowance) - self.ledger;
        if missing > 1e-9 && c.loss_share > 0.0 {
            parked.tokens_left = ((missing / c.loss_share).ceil() as u64).max(1);
            return true;
        }
        self.parked = None;
        self.stint = 0;
        self.losing = 0;
        // From the cheapest cycle up again.
        self.depth = 1;
        self.acceptance.limit(c.reentry_weight);
        false
    }
}

fn milliseconds(elapsed: Duration) -> f64 {
    elapsed.as_secs_f64() * 1000.0
}
