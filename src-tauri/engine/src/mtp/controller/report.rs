//! What the controller is told, and what it has counted.

use std::time::Duration;

/// What a cycle came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CycleReport {
    /// The depth that was decided.
    pub depth: usize,
    /// Tokens really drafted. The time counts for this depth.
    pub drafted: usize,
    /// Drafts that became part of the answer.
    pub accepted: usize,
    /// Whether a limit ended the run with drafts left unjudged ([`crate::mtp::accept::Verdict::was_cut`]): the next draft was not
    /// refused then.
    pub cut: bool,
    /// Time of the cycle: drafting, verification, rollback.
    pub elapsed: Duration,
    /// Whether something else had a part in the time: a prefill chunk or another sequence's step in between, work done
    /// only once. Only the acceptance counts then.
    pub contended: bool,
}

/// Counts of one request, for its usage report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatistics {
    /// Verify passes with at least one draft.
    pub cycles: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafts accepted.
    pub accepted: u64,
    /// Cycles by the number of tokens drafted; at 0 the plain steps.
    pub depth_histogram: Vec<u64>,
    /// For each place of the chain (0 for the first draft): drafts judged, drafts accepted.
    pub judged_by_place: Vec<(u64, u64)>,
    /// How often speculation was given up for a while.
    pub parks: u64,
}

impl ControllerStatistics {
    /// Share of the drafted tokens that were accepted; 0 when there were none.
    pub fn acceptance(&self) -> f64 {
        match self.drafted {
            0 => 0.0,
            drafted => self.accepted as f64 / drafted as f64,
        }
    }

    /// Tokens that a cycle gave on average, the one besides the drafts included; 0 when there was no cycle.
    pub fn tokens_per_cycle(&self) -> f64 {
        match self.cycles {
            0 => 0.0,
            cycles => 1.0 + self.accepted as f64 / cycles as f64,
        }
    }
}
