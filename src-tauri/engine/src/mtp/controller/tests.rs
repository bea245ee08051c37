//! The controller on simulated machines and texts: what it settles on, and what it costs.

use super::*;

/// Repeatable noise.
struct Noise(u64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A factor on a time: within 10 %, and one in forty times up to three times as long.
    fn factor(&mut self) -> f64 {
        let usual = 0.9 + 0.2 * self.unit();
        let stalled = self.unit() < 0.025;
        usual
            * if stalled {
                1.5 + 1.5 * self.unit()
            } else {
                1.0
            }
    }
}

/// A machine: milliseconds by depth. A text: the chance that each draft is accepted after those before.
#[derive(Clone, Debug)]
struct Curve {
    name: &'static str,
    step_ms: f64,
    /// In plain steps, from depth 1.
    cycles: &'static [f64],
    acceptance: &'static [f64],
}

/// A dense model on a machine bound by memory: rows are almost free.
const DENSE: &[f64] = &[1.12, 1.25, 1.37, 1.5];
/// A small model whose head and rows weigh more.
const SMALL: &[f64] = &[1.3, 1.55, 1.85, 2.15];
/// A mixture of experts: each row reads other experts.
const EXPERTS: &[f64] = &[1.6, 2.05, 2.5, 2.9];

const CODE: &[f64] = &[0.92, 0.9, 0.88, 0.86];
const CHAT: &[f64] = &[0.74, 0.66, 0.6, 0.55];
const PROSE: &[f64] = &[0.6, 0.4, 0.3, 0.25];
const RANDOM: &[f64] = &[0.08, 0.05, 0.05, 0.05];
const HOPELESS: &[f64] = &[0.0, 0.0, 0.0, 0.0];

const fn curve(
    name: &'static str,
    step_ms: f64,
    cycles: &'static [f64],
    acceptance: &'static [f64],
) -> Curve {
    Curve {
        name,
        step_ms,
        cycles,
        acceptance,
    }
}

impl Curve {
    fn max_depth(&self) -> usize {
        self.cycles.len()
    }

    fn steps(&self, depth: usize) -> f64 {
        if depth == 0 {
            1.0
        } else {
            self.cycles[depth - 1]
        }
    }

    /// Steps a token at a depth, on average.
    fn steps_per_token(&self, depth: usize) -> f64 {
        let (mut all, mut tokens) = (1.0, 1.0);
        for p in &self.acceptance[..depth] {
            all *= p;
            tokens += all;
        }
        self.steps(depth) / tokens
    }

    /// The best depth and its steps a token.
    fn best(&self) -> (usize, f64) {
        (0..=self.max_depth())
            .map(|depth| (depth, self.steps_per_token(depth)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap()
    }

    fn elapsed(&self, steps: f64, noise: &mut Noise) -> Duration {
        Duration::from_secs_f64(steps * noise.factor() * self.step_ms / 1000.0)
    }

    /// One decision carried out: the tokens it gave and its true cost in steps, without the noise that the controller sees.
    fn advance(&self, controller: &mut DepthController, noise: &mut Noise) -> (usize, f64) {
        match controller.next() {
            Decision::Plain => {
                controller.report_plain(1, self.elapsed(1.0, noise), false);
                (1, 1.0)
            }
            Decision::Speculate { depth } => {
                let mut accepted = 0;
                while accepted < depth && noise.unit() < self.acceptance[accepted] {
                    accepted += 1;
                }
                let steps = self.steps(depth);
                controller.report(CycleReport {
                    depth,
                    drafted: depth,
                    accepted,
                    cut: false,
                    elapsed: self.elapsed(steps, noise),
                    contended: false,
                });
                (accepted + 1, steps)
            }
        }
    }

    /// Runs an answer of at least `tokens`; steps a token.
    fn answer(&self, controller: &mut DepthController, tokens: usize, noise: &mut Noise) -> f64 {
        let (mut given, mut cost) = (0, 0.0);
        while given < tokens {
            let (more, steps) = self.advance(controller, noise);
            given += more;
            cost += steps;
        }
        cost / given as f64
    }
}

const LOSING: &[Curve] = &[
    curve("experts, random text", 20.0, EXPERTS, RANDOM),
    curve("experts, prose", 20.0, EXPERTS, PROSE),
    curve("small, random text", 8.0, SMALL, RANDOM),
    curve("small, hopeless", 8.0, SMALL, HOPELESS),
    curve("dense, random text", 60.0, DENSE, RANDOM),
    curve("dense, hopeless", 60.0, DENSE, HOPELESS),
    curve("experts, hopeless, slow", 200.0, EXPERTS, HOPELESS),
];

const WINNING: &[Curve] = &[
    curve("dense, code", 40.0, DENSE, CODE),
    curve("dense, chat", 40.0, DENSE, CHAT),
    curve("dense, prose", 40.0, DENSE, PROSE),
    curve("small, code", 8.0, SMALL, CODE),
    curve("small, chat", 8.0, SMALL, CHAT),
    curve("small, prose", 8.0, SMALL, PROSE),
    curve("experts, code", 20.0, EXPERTS, CODE),
    curve("slow, chat", 300.0, DENSE, CHAT),
];

const SEEDS: u64 = 60;

fn fresh(curve: &Curve) -> DepthController {
    DepthController::adaptive(curve.max_depth(), None)
}

/// Costs of a fresh answer of `tokens`, relative to `reference`, over all seeds, ascending.
fn costs(curve: &Curve, tokens: usize, reference: f64) -> Vec<f64> {
    let cost = |seed| {
        let noise = &mut Noise::new(seed + 1);
        curve.answer(&mut fresh(curve), tokens, noise) / reference
    };
    let mut costs: Vec<f64> = (0..SEEDS).map(cost).collect();
    costs.sort_by(f64::total_cmp);
    costs
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn a_losing_text_costs_less_than_three_percent_of_a_short_answer() {
    for curve in LOSING {
        assert_eq!(curve.best().0, 0, "{}", curve.name);
        let costs = costs(curve, 200, 1.0);
        let rare = costs[costs.len() * 95 / 100];
        let worst = costs[costs.len() - 1];
        println!("{}: {:.3}, {rare:.3}, {worst:.3}", curve.name, mean(&costs));
        assert!(mean(&costs) < 1.022, "{}: {:.3}", curve.name, mean(&costs));
        assert!(rare < 1.03, "{}: {rare:.3}", curve.name);
        // Stalls just when plain steps are measured.
        assert!(worst < 1.045, "{}: {worst:.3}", curve.name);
    }
}

#[test]
fn a_losing_text_costs_ever_less_of_a_long_answer() {
    for curve in LOSING {
        for seed in 0..10 {
            let mut controller = fresh(curve);
            let cost = curve.answer(&mut controller, 8000, &mut Noise::new(seed + 1));
            assert!(cost < 1.012, "{}: {cost:.4}", curve.name);
            let parks = controller.statistics().parks;
            assert!(parks >= 2, "{}: {parks} parks", curve.name);
        }
    }
}

#[test]
fn a_winning_text_is_within_eight_percent_of_the_best_fixed_depth() {
    for curve in WINNING {
        let (depth, best) = curve.best();
        assert!(depth > 0, "{}", curve.name);
        let costs = costs(curve, 400, best);
        println!("{}: {:.3}", curve.name, mean(&costs));
        assert!(mean(&costs) < 1.08, "{}: {:.3}", curve.name, mean(&costs));
        // And better than plain steps, whatever the noise.
        let worst = costs[costs.len() - 1] * best;
        assert!(worst < 1.0, "{}: {worst:.3} steps a token", curve.name);
    }
}

#[test]
fn it_settles_on_a_depth_that_is_about_the_best() {
    for curve in WINNING {
        let mut total = 0.0;
        for seed in 0..SEEDS {
            let (mut controller, mut noise) = (fresh(curve), Noise::new(seed + 1));
            curve.answer(&mut controller, 1500, &mut noise);
            // What it uses from now on, probes included, by the true cost of that depth.
            let (mut cost, mut cycles) = (0.0, 0.0);
            for _ in 0..300 {
                let depth = match controller.next() {
                    Decision::Speculate { depth } => depth,
                    Decision::Plain => 0,
                };
                cost += curve.steps_per_token(depth);
                cycles += 1.0;
                curve.advance(&mut controller, &mut noise);
            }
            total += cost / cycles / curve.best().1;
        }
        let settled = total / SEEDS as f64;
        println!("{}: {settled:.3}", curve.name);
        assert!(settled < 1.05, "{}: {settled:.3}", curve.name);
    }
}

#[test]
fn without_noise_in_the_times_a_clear_best_depth_is_found_and_kept() {
    // Drafts up to the best depth are always right, none after.
    const CYCLES: &[f64] = &[1.2, 1.4, 1.6, 1.8];
    for best in 1..=4 {
        let mut controller = DepthController::adaptive(4, None);
        for _ in 0..400 {
            match controller.next() {
                Decision::Plain => controller.report_plain(1, Duration::from_millis(10), false),
                Decision::Speculate { depth } => controller.report(CycleReport {
                    depth,
                    drafted: depth,
                    accepted: depth.min(best),
                    cut: false,
                    elapsed: Duration::from_secs_f64(CYCLES[depth - 1] / 100.0),
                    contended: false,
                }),
            }
        }
        let statistics = controller.statistics();
        assert!(
            statistics.depth_histogram[best] > 350,
            "{best}: {statistics:?}"
        );
        assert_eq!(statistics.parks, 0);
    }
}

#[test]
fn it_parks_when_every_depth_loses_and_comes_back_when_one_wins_again() {
    let losing = &LOSING[2];
    let winning = &WINNING[3];
    for seed in 0..SEEDS {
        let (mut controller, mut noise) = (fresh(winning), Noise::new(seed + 1));
        winning.answer(&mut controller, 300, &mut noise);
        assert_eq!(controller.parked_tokens(), 0);
        let before = controller.statistics().parks;

        let cost = losing.answer(&mut controller, 500, &mut noise);
        assert!(controller.statistics().parks > before);
        assert!(cost < 1.05, "{cost:.3}");

        // Within a cooldown.
        winning.answer(&mut controller, 900, &mut noise);
        let cycles = controller.statistics().cycles;
        let cost = winning.answer(&mut controller, 400, &mut noise);
        assert!(controller.statistics().cycles > cycles + 80);
        assert!(cost < winning.best().1 * 1.2, "seed {seed}: {cost:.3}");
        // A success makes the next cooldown short again.
        assert_eq!(controller.cooldown, controller.constants.cooldown_tokens);
    }
}

#[test]
fn cooldowns_double_up_to_their_limit() {
    let constants = ControllerConstants {
        cooldown_most: 200,
        loss_share: 1.0,
        ..ControllerConstants::default()
    };
    let mut controller = DepthController::with_constants(2, None, constants);
    let curve = &LOSING[3];
    let mut noise = Noise::new(3);
    let mut cooldowns = Vec::new();
    for _ in 0..2000 {
        let parks = controller.statistics().parks;
        let slice = Curve {
            cycles: &curve.cycles[..2],
            ..curve.clone()
        };
        slice.advance(&mut controller, &mut noise);
        if controller.statistics().parks > parks {
            cooldowns.push(controller.parked_tokens());
        }
    }
    assert_eq!(cooldowns[..5], [32, 64, 128, 200, 200]);
}

#[test]
fn contended_times_change_nothing_but_acceptance_counts() {
    let curve = &WINNING[4];
    let (mut calm, mut noise) = (fresh(curve), Noise::new(9));
    curve.answer(&mut calm, 300, &mut noise);
    let mut disturbed = calm.clone();
    for _ in 0..50 {
        disturbed.report_plain(1, Duration::from_secs(3), true);
        let Decision::Speculate { depth } = disturbed.next() else {
            panic!("parked by a contended step")
        };
        disturbed.report(CycleReport {
            depth,
            drafted: depth,
            accepted: depth,
            cut: false,
            elapsed: Duration::from_secs(5),
            contended: true,
        });
    }
    for depth in 0..=curve.max_depth() {
        assert_eq!(calm.estimated_ms(depth), disturbed.estimated_ms(depth));
    }
    assert_eq!(disturbed.statistics().parks, 0);
    assert!(disturbed.statistics().acceptance() > calm.statistics().acceptance());

    // Text that turns bad is noticed even when no time can be trusted.
    let mut parked = false;
    for _ in 0..100 {
        match disturbed.next() {
            Decision::Plain => {
                parked |= disturbed.parked_tokens() > 0;
                disturbed.report_plain(1, Duration::from_secs(3), true);
            }
            Decision::Speculate { depth } => disturbed.report(CycleReport {
                depth,
                drafted: depth,
                accepted: 0,
                cut: false,
                elapsed: Duration::from_micros(1),
                contended: true,
            }),
        }
    }
    assert!(parked);
}

#[test]
fn with_nothing_but_contended_steps_a_new_model_stays_plain() {
    let mut controller = DepthController::adaptive(3, None);
    for _ in 0..100 {
        assert_eq!(controller.next(), Decision::Plain);
        controller.report_plain(1, Duration::from_millis(10), true);
    }
    assert_eq!(controller.estimated_ms(0), None);
    for _ in 0..4 {
        controller.report_plain(1, Duration::from_millis(10), false);
    }
    assert_eq!(controller.next(), Decision::Speculate { depth: 1 });
}

#[test]
fn a_model_is_remembered_from_request_to_request() {
    // Winning: the next request starts at once, and is closer to the best than a fresh one.
    let curve = &WINNING[0];
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for seed in 0..SEEDS {
        let mut noise = Noise::new(seed + 1);
        let mut controller = fresh(curve);
        first.push(curve.answer(&mut controller, 60, &mut noise));
        for _ in 0..3 {
            let memory = controller.memory().unwrap();
            controller = DepthController::adaptive(curve.max_depth(), Some(&memory));
            assert_ne!(controller.next(), Decision::Plain);
            later.push(curve.answer(&mut controller, 60, &mut noise));
        }
    }
    assert!(
        mean(&later) < mean(&first) * 0.95,
        "{} {}",
        mean(&later),
        mean(&first)
    );

    // Losing: many short answers together lose little, and speculation is still tried now and then.
    for curve in LOSING {
        for seed in 0..10 {
            let mut noise = Noise::new(seed + 1);
            let mut controller = fresh(curve);
            let mut cost = 0.0;
            for _ in 0..60 {
                cost += curve.answer(&mut controller, 40, &mut noise) / 60.0;
                let memory = controller.memory().unwrap();
                controller = DepthController::adaptive(curve.max_depth(), Some(&memory));
            }
            assert!(cost < 1.03, "{}: {cost:.3}", curve.name);
        }
    }
}

#[test]
fn twenty_prompts_of_mixed_texts_are_never_slower_than_plain_decoding() {
    const TEXTS: [&[f64]; 5] = [CODE, RANDOM, CHAT, HOPELESS, PROSE];
    for machine in [DENSE, SMALL, EXPERTS] {
        for seed in 0..20 {
            let mut noise = Noise::new(seed + 1);
            let mut memory = None;
            for prompt in 0..20 {
                let text = TEXTS[prompt % 5];
                let curve = curve("mixed", 15.0, machine, text);
                let mut controller = DepthController::adaptive(4, memory.as_ref());
                let cost = curve.answer(&mut controller, 200, &mut noise);
                assert!(cost < 1.045, "prompt {prompt}: {cost:.3}");
                memory = controller.memory();
            }
        }
    }
}

#[test]
fn times_that_grow_with_the_context_do_not_end_speculation() {
    let curve = &WINNING[1];
    let (mut controller, mut noise) = (fresh(curve), Noise::new(5));
    let mut growing = curve.clone();
    for part in 0..40 {
        growing.step_ms = curve.step_ms * (1.0 + f64::from(part) * 0.05);
        growing.answer(&mut controller, 100, &mut noise);
    }
    let statistics = controller.statistics();
    assert_eq!(statistics.parks, 0);
    // Plain steps were measured again: their estimate followed.
    let plain = controller.estimated_ms(0).unwrap();
    assert!(plain > curve.step_ms * 2.2, "{plain}");
}

#[test]
fn a_fixed_depth_stays_and_is_counted() {
    let mut controller = DepthController::fixed(2);
    let report = |accepted, drafted, cut| CycleReport {
        depth: 2,
        drafted,
        accepted,
        cut,
        elapsed: Duration::from_millis(500),
        contended: false,
    };
    for _ in 0..50 {
        controller.report(report(0, 2, false));
        assert_eq!(controller.next(), Decision::Speculate { depth: 2 });
    }
    controller.report(report(2, 2, false));
    controller.report(report(1, 2, true));
    controller.report(report(0, 0, false));
    assert_eq!(controller.memory(), None);
    let expected = ControllerStatistics {
        cycles: 52,
        drafted: 104,
        accepted: 3,
        depth_histogram: vec![1, 0, 52],
        judged_by_place: vec![(52, 2), (1, 1)],
        parks: 0,
    };
    assert_eq!(controller.statistics(), &expected);
    assert_eq!(
        DepthController::fixed(0).next(),
        Decision::Speculate { depth: 1 }
    );
    assert_eq!(
        DepthController::fixed(99).next(),
        Decision::Speculate { depth: 8 }
    );
}

#[test]
fn senseless_reports_do_no_harm() {
    let mut controller = DepthController::adaptive(3, None);
    for round in 0..200_usize {
        let elapsed = match round % 3 {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            _ => Duration::from_nanos(1),
        };
        controller.report_plain(round % 2 * usize::MAX, elapsed, false);
        controller.report(CycleReport {
            depth: 77,
            drafted: round * 1000,
            accepted: usize::MAX,
            cut: round % 2 == 0,
            elapsed,
            contended: false,
        });
        if let Decision::Speculate { depth } = controller.next() {
            assert!((1..=3).contains(&depth));
        }
    }
}
