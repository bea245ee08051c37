//! What is known of acceptance and of times.

use super::constants::ControllerConstants;

/// Drafts that were judged at one place of the chain, older ones faded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    judged: f64,
    accepted: f64,
}

/// The probability that draft `i` is accepted after the drafts before it were, for each place of the chain.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Acceptance {
    places: Vec<Tally>,
}

impl Acceptance {
    /// What is assumed before anything was observed; it fades as observations do.
    pub(super) fn new(max_depth: usize, c: &ControllerConstants) -> Self {
        let mut places = vec![Tally::default(); max_depth];
        if let Some(first) = places.first_mut() {
            first.judged = c.prior_weight;
            first.accepted = c.prior_weight * c.prior_acceptance;
        }
        Self { places }
    }

    /// Notes a cycle in which the first `accepted` drafts were right and, where `refused`, the next one wrong.
    pub(super) fn observe(&mut self, accepted: usize, refused: bool, c: &ControllerConstants) {
        let judged = accepted + usize::from(refused);
        for (place, tally) in self.places.iter_mut().enumerate().take(judged) {
            let keep = 1.0 - c.acceptance_decay;
            tally.judged = tally.judged * keep + 1.0;
            tally.accepted = tally.accepted * keep + f64::from(u8::from(place < accepted));
        }
    }

    /// The conditional acceptance of each place.
    pub(super) fn rates(&self, c: &ControllerConstants) -> impl Iterator<Item = f64> {
        // The first place stands for itself; its own counts are never empty, but for constants that say so.
        let (mut before, mut weight) = (c.prior_acceptance, f64::MIN_POSITIVE);
        let depth_weight = c.depth_weight;
        self.places.iter().map(move |tally| {
            let rate = (tally.accepted + before * weight) / (tally.judged + weight);
            (before, weight) = (rate, depth_weight);
            rate
        })
    }

    /// Tokens that a cycle of each depth gives on average: `1 + p1 + p1 p2 + ...`, from depth 0 up.
    pub(super) fn tokens_by_depth(&self, c: &ControllerConstants) -> Vec<f64> {
        let mut tokens = vec![1.0];
        let (mut all, mut sum) = (1.0, 1.0);
        for rate in self.rates(c) {
            all *= rate;
            sum += all;
            tokens.push(sum);
        }
        tokens
    }

    /// Lets what was observed weigh no more than `most` observations.
    pub(super) fn limit(&mut self, most: f64) {
        for tally in &mut self.places {
            if tally.judged > most {
                tally.accepted *= most / tally.judged;
                tally.judged = most;
            }
        }
    }

    /// The same for another number of places.
    pub(super) fn resized(mut self, max_depth: usize) -> Self {
        self.places.resize(max_depth, Tally::default());
        self
    }
}

/// The time of a cycle at one depth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct DepthTime {
    /// Average, in milliseconds.
    average: f64,
    samples: u32,
    /// The first few times: their median (the lower of two) is the average at first, as some of them may be stalls.
    early: [f64; 5],
    /// The controller's clock at the latest sample, in milliseconds.
    at: f64,
    /// An earlier request's average, 0 when there is none.
    earlier: f64,
}

/// The time of a cycle at each depth, 0 being a plain step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Times {
    depths: Vec<DepthTime>,
}

impl Times {
    pub(super) fn new(max_depth: usize, earlier: &[f64]) -> Self {
        let depth = |depth| DepthTime {
            earlier: earlier.get(depth).copied().unwrap_or(0.0),
            ..DepthTime::default()
        };
        Self {
            depths: (0..=max_depth).map(depth).collect(),
        }
    }

    /// Takes in a measured time of `ms` (more than 0) for `depth`.
    pub(super) fn observe(&mut self, depth: usize, ms: f64, now: f64, c: &ControllerConstants) {
        let expected = self.get(depth, c);
        let Some(time) = self.depths.get_mut(depth) else {
            return;
        };
        // What passed since the latest sample, this cycle included: an old average weighs less.
        let gap = f64::max(ms, now - time.at);
        time.at = now;
        time.samples = time.samples.saturating_add(1);
        if let Some(early) = time.early.get_mut(time.samples as usize - 1) {
            *early = ms;
            // A cycle far slower than expected paid for something else, such as the compilation of a kernel.
            if let Some(expected) = expected
                && ms > expected * c.outlier_ratio
            {
                *early = expected * c.outlier_ratio;
            }
            let mut early = time.early[..time.samples as usize].to_vec();
            early.sort_by(f64::total_cmp);
            time.average = early[(early.len() - 1) / 2];
            return;
        }
        let by_clock = (1.0 - (-gap / c.time_horizon_ms).exp()).min(c.time_weight_most);
        // The first few are averaged plainly.
        let mut weight = match time.samples {
            few @ ..=8 => f64::max(by_clock, 1.0 / f64::from(few)),
            _ => by_clock,
        };
        let mut ms = ms;
        if ms > time.average * c.outlier_ratio {
            weight *= c.outlier_weight;
            // Not even a whole second of a stalled machine may outweigh everything that was measured.
            ms = ms.min(time.average * c.outlier_ratio.powi(2));
        }
        time.average += (ms - time.average) * weight;
    }

    /// Times measured at `depth` in this request.
    pub(super) fn samples(&self, depth: usize) -> u32 {
        self.depths.get(depth).map_or(0, |time| time.samples)
    }

    /// Milliseconds since `depth` was measured, or since the request's start.
    pub(super) fn age(&self, depth: usize, now: f64) -> f64 {
        self.depths.get(depth).map_or(0.0, |time| now - time.at)
    }

    /// How much slower this request is than the one that [`DepthTime::earlier`] comes from: its context may be longer.
    fn drift(&self) -> f64 {
        let both = |time: &&DepthTime| time.samples > 0 && time.earlier > 0.0;
        let (mut weights, mut ratios) = (0.0, 0.0);
        for time in self.depths.iter().filter(both) {
            let weight = f64::from(time.samples.min(8));
            weights += weight;
            ratios += weight * time.average / time.earlier;
        }
        if weights > 0.0 { ratios / weights } else { 1.0 }
    }

    /// Milliseconds of a cycle of `depth`, where it was measured in this request or an earlier one.
    pub(super) fn measured(&self, depth: usize) -> Option<f64> {
        let time = self.depths.get(depth)?;
        if time.samples > 0 {
            Some(time.average)
        } else if time.earlier > 0.0 {
            Some(time.earlier * self.drift())
        } else {
            None
        }
    }

    /// Milliseconds of a cycle of `depth`: measured, or else continued from the nearest measured depths. `None` when nothing is known.
    pub(super) fn get(&self, depth: usize, c: &ControllerConstants) -> Option<f64> {
        if let Some(known) = self.measured(depth) {
            return Some(known);
        }
        let below = (0..depth)
            .rev()
            .find_map(|d| self.measured(d).map(|ms| (d, ms)));
        let above = (depth + 1..self.depths.len()).find_map(|d| self.measured(d).map(|ms| (d, ms)));
        match (below, above) {
            (Some((low, low_ms)), Some((high, high_ms))) => {
                let share = (depth - low) as f64 / (high - low) as f64;
                Some(low_ms + (high_ms - low_ms) * share)
            }
            (Some((low, ms)), None) => {
                let rows = (depth - low) as f64;
                Some(ms + rows * c.row_steps * self.measured(0).unwrap_or(ms))
            }
            (None, Some((high, ms))) => Some(ms / (1.0 + (high - depth) as f64 * c.row_steps)),
            (None, None) => None,
        }
    }

    /// For the next request: the times of every depth, 0 where none was measured.
    pub(super) fn memory(&self) -> Vec<f64> {
        let time = |depth| self.measured(depth).unwrap_or(0.0);
        (0..self.depths.len()).map(time).collect()
    }
}
