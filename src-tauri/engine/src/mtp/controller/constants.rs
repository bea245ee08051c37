//! Every number that the controller's behaviour depends on.

/// The controller's constants. One "step" is the time of one plain decode step, so that the same numbers fit a model of 5 ms a token and
/// one of 500.
#[derive(Clone, Debug, PartialEq)]
pub struct ControllerConstants {
    /// Acceptance that is assumed where nothing is known: between prose (about 0.7 at depth 1) and text that a head cannot
    /// predict. Too high costs a few cycles on a hopeless text, too low would never try.
    pub prior_acceptance: f64,
    /// How many observations the assumption weighs. Small: a text shows within a few cycles what it is.
    pub prior_weight: f64,
    /// How many observations a depth's acceptance takes over from the depth before it. A head that missed the last token has little to go on, so
    /// depths fail and succeed together.
    pub depth_weight: f64,
    /// Share by which each observation of acceptance fades the earlier ones. 0.04 averages about 25 verified drafts: a
    /// passage, not the whole answer, and its noise (0.09) is bearable.
    pub acceptance_decay: f64,
    /// Time constant of the average times, in milliseconds of cycles of that depth: by wall clock, as what shifts times (heat,
    /// other programs) goes by wall clock.
    pub time_horizon_ms: f64,
    /// The most that one time may shift an average. Steps as long as the horizon would otherwise be no average at all.
    pub time_weight_most: f64,
    /// A time above this multiple of the average is an outlier (a page fault, a compilation, another program)...
    pub outlier_ratio: f64,
    /// ...and shifts the average by this share of what it otherwise would: real changes still get through.
    pub outlier_weight: f64,
    /// Plain steps measured before anything else where no time is known. They cost nothing when speculation loses; four,
    /// as their median survives a stall or two.
    pub plain_samples: u32,
    /// Steps that a row adds to a pass, and a draft to a cycle, where only one depth is known. Optimistic, so that a depth
    /// is tried when it might pay; one cycle then says what it takes.
    pub row_steps: f64,
    /// A depth is left only for one that scores this much better: a switch changes matmul shapes and says little while
    /// estimates are noisy.
    pub switch_gain: f64,
    /// A probe of another depth: this many cycles in a row, as the first may pay for the change of shape.
    pub probe_cycles: u32,
    /// Cycles between probes, and...
    pub probe_every_cycles: u32,
    /// ...the most probes may make up of a request's cycles.
    pub probe_share: f64,
    /// Milliseconds between probes of the best rival.
    pub rival_every_ms: f64,
    /// A rival scores at least this share of the depth in use. With `probe_share` it bounds what probes cost: 15 % of 6 %.
    pub rival_score: f64,
    /// After so many milliseconds a depth's time is out of date, and the oldest is measured again; twice that for depths
    /// below `rival_score`, whose probes cost more.
    pub stale_after_ms: f64,
    /// Below this gain over plain steps their time is measured anew every `plain_check_cycles`, as everything hangs on it and a
    /// plain step costs little then...
    pub doubtful_gain: f64,
    /// ...and once in a request that took over their time from an earlier one: the judge of loss must not be hearsay.
    pub plain_check_cycles: u64,
    /// Speculation must be this much better than plain steps to go on: below, the measurement's own error decides.
    pub park_margin: f64,
    /// Decisions in a row below the margin before parking: one unlucky draft is no verdict, and the ledger bounds what patience costs.
    pub park_after: u32,
    /// Cycles of a stint (since the request's start or a re-entry) before its estimates may park it. A ledger that is used up
    /// parks at once.
    pub trial_cycles: u64,
    /// Below this multiple of plain steps a decision counts twice: such a text is soon given up.
    pub clear_loss: f64,
    /// Cycles of a stint after which, if it still goes on, it has succeeded and cooldowns start small again.
    pub success_cycles: u64,
    /// Tokens of plain decoding after a first failure; each further one doubles them...
    pub cooldown_tokens: u64,
    /// ...up to this.
    pub cooldown_most: u64,
    /// A new request starts parked after one that ended parked, for its cooldown divided by this: another text is another
    /// chance, but most texts of a model that never gains are alike.
    pub new_request_divisor: u64,
    /// The longest such start.
    pub new_request_most: u64,
    /// Observations that old acceptance weighs at a re-entry: the text has moved on.
    pub reentry_weight: f64,
    /// Observations that an earlier request's acceptance weighs.
    pub memory_weight: f64,
    /// Steps that a request may lose to speculation before it must stop, from its start. With `loss_share` this is the bound on a losing text:
    /// 200 tokens lose at most 2 + 2 steps and the cycle that finds out, about 2.5 %.
    pub loss_allowance: f64,
    /// The most that gains may bring the ledger to: an unlucky passage of a text on which speculation wins spends what was won.
    pub ledger_most: f64,
    /// Where the estimates still see this gain, the ledger may be overdrawn...
    pub overdraft_gain: f64,
    /// ...by so many steps: at that point the estimates are not believed any more.
    pub overdraft: f64,
    /// Steps earned back by each token of the answer: what probing may cost in the long run.
    pub loss_share: f64,
    /// Steps that must be in hand for a re-entry, enough for `trial_cycles` at depth 1 on most machines.
    pub reentry_allowance: f64,
}

impl Default for ControllerConstants {
    fn default() -> Self {
        Self {
            prior_acceptance: 0.6,
            prior_weight: 3.0,
            depth_weight: 3.0,
            acceptance_decay: 0.04,
            time_horizon_ms: 400.0,
            time_weight_most: 0.25,
            outlier_ratio: 2.0,
            outlier_weight: 0.25,
            plain_samples: 4,
            row_steps: 0.12,
            switch_gain: 1.03,
            probe_cycles: 2,
            probe_every_cycles: 12,
            probe_share: 0.06,
            rival_every_ms: 1000.0,
            rival_score: 0.85,
            stale_after_ms: 5000.0,
            doubtful_gain: 1.15,
            plain_check_cycles: 8,
            park_margin: 1.02,
            park_after: 6,
            trial_cycles: 3,
            clear_loss: 0.85,
            success_cycles: 16,
            cooldown_tokens: 32,
            cooldown_most: 4096,
            new_request_divisor: 4,
            new_request_most: 512,
            reentry_weight: 1.5,
            memory_weight: 5.0,
            loss_allowance: 2.0,
            ledger_most: 8.0,
            overdraft_gain: 1.15,
            overdraft: 1.0,
            loss_share: 0.01,
            reentry_allowance: 1.0,
        }
    }
}
