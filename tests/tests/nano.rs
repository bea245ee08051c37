//! The small hybrid model: quantized against unquantized, and in MLX's mixed-bit form.

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows, Model},
    positions::Positions,
    tokenizer::Tokenizer,
};
use headstart_tests::locate::{bundled, shared};

/// Twenty questions about a fact hidden in prose: what this model was trained for. (Where it has nothing to go by it rambles, and its
/// next words are near ties that any rounding decides: there 9 of 20 answers stay equal in 4 bits, 16 in 6, 18 in 8.)
fn prompts() -> Vec<String> {
    let names = [
        "red vault",
        "blue door",
        "north gate",
        "old tower",
        "green cellar",
    ];
    let people = ["Rosa", "Tariq", "Uma", "Liam", "Nina"];
    let colours = ["teal", "orange", "violet", "grey", "crimson"];
    let mut prompts = Vec::new();
    for i in 0..5 {
        let (name, person, other, colour) = (names[i], people[i], people[(i + 3) % 5], colours[i]);
        let code = 48_213 + 9_871 * i;
        let badge = 5_512 + 731 * i;
        for (fact, question) in [
            (
                format!("The access code of the {name} is {code}."),
                format!("What is the access code of the {name}?"),
            ),
            (
                format!("{person} painted the {name} in {colour}."),
                format!("In which colour did {person} paint the {name}?"),
            ),
            (
                format!("{person}'s badge number is {badge}."),
                format!("What is {person}'s badge number?"),
            ),
            (
                format!("{person} met {other} at the {name}."),
                format!("Where did {person} meet {other}?"),
            ),
        ] {
            let (before, after) = HELD_TEXT.split_at(HELD_TEXT.find(". So the").unwrap_or(0) + 1);
            prompts.push(format!("{before} {fact} {after}\n\n{question}"));
        }
    }
    prompts
}

/// Our own prose, which no model was trained on.
const HELD_TEXT: &str = "A program that runs on the reader's own machine owes nothing to the network. It starts when it is asked to, it \
    answers while the cable is unplugged, and what is typed into it stays where it was typed. The price is that the machine must do \
    the work itself, and a laptop is not a data centre. So the work is made smaller: the weights are rounded to a few bits, the parts \
    of a long prompt that matter are read first, and the tokens that are easy to guess are guessed. None of this changes what the \
    model knows. It changes how long one waits before the first word appears, and how quickly the others follow. A user who asks the \
    same question twice should get the same answer twice, and a user who changes one word should not pay for the whole page again. \
    The rest is housekeeping: files that are complete or absent, numbers that say what they measure, errors that tell what to do.";

struct Loaded {
    model: Box<dyn Model>,
    tokenizer: Tokenizer,
}

fn load(path: &Path) -> Loaded {
    let checkpoint = Checkpoint::open(path).unwrap();
    Loaded {
        model: checkpoint
            .load(&Device::Cpu, &LoadOptions::default())
            .unwrap(),
        tokenizer: checkpoint.tokenizer().unwrap(),
    }
}

impl Loaded {
    fn forward(&self, tokens: &[u32], logits: LogitRows) -> Tensor {
        let input = ForwardInput {
            tokens,
            positions: &Positions::contiguous(0, tokens.len()),
            logits,
            hidden: false,
            queries: false,
            replayable: false,
        };
        self.model
            .forward(input, &mut self.model.new_cache())
            .unwrap()
            .logits()
            .unwrap()
    }

    fn greedy(&self, prompt: &str, steps: usize) -> Vec<u32> {
        let text = format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n");
        let mut next = self.tokenizer.encode(&text, false).unwrap();
        let mut cache = self.model.new_cache();
        let mut out = Vec::new();
        while out.len() < steps {
            let positions = Positions::contiguous(cache.next_position(), next.len());
            let input = ForwardInput {
                tokens: &next,
                positions: &positions,
                logits: LogitRows::Last,
                hidden: false,
                queries: false,
                replayable: false,
            };
            let row = self
                .model
                .forward(input, &mut cache)
                .unwrap()
                .logits()
                .unwrap();
            let token = row
                .get(0)
                .unwrap()
                .argmax(0)
                .unwrap()
                .to_scalar::<u32>()
                .unwrap();
            out.push(token);
            if self.tokenizer.stop_ids().contains(&token) {
                break;
            }
            next = vec![token];
        }
        out
    }

    fn perplexity(&self, text: &str) -> f64 {
        let ids = self.tokenizer.encode(text, false).unwrap();
        let rows = self.forward(&ids, LogitRows::All).to_vec2::<f32>().unwrap();
        let loss: f64 = rows
            .iter()
            .zip(&ids[1..])
            .map(|(row, next)| {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
                f64::from(largest) + sum.ln() - f64::from(row[*next as usize])
            })
            .sum();
        (loss / (ids.len() - 1) as f64).exp()
    }
}

fn unquantized() -> Option<PathBuf> {
    shared("models/nano")
}

#[test]
fn four_bits_answer_as_sixteen_do() {
    let Some(path) = unquantized() else { return };
    let (full, packed) = (load(&path), load(&bundled("nano")));
    let same: Vec<bool> = prompts()
        .iter()
        .map(|prompt| full.greedy(prompt, 16) == packed.greedy(prompt, 16))
        .collect();
    let agree = same.iter().filter(|same| **same).count();
    let (before, after) = (full.perplexity(HELD_TEXT), packed.perplexity(HELD_TEXT));
    println!("{agree} of 20 answers equal for 16 tokens; perplexity {before:.2} became {after:.2}");
    assert!(agree >= 15, "{agree}: {same:?}");
    assert!(
        (after / before - 1.0).abs() < 0.05,
        "perplexity {before} became {after}"
    );
}

#[test]
fn mixed_bits_in_mlx_layout_load_and_answer() {
    let Some(path) = shared("models/nano-oq4") else {
        return;
    };
    let mixed = load(&path);
    let answer = mixed.greedy("What is the capital of France?", 16);
    let text = mixed.tokenizer.decode(&answer, true);
    assert!(text.contains("Paris"), "{text}");
}

#[test]
fn the_draft_shares_the_tokenizer() {
    let (target, draft) = (load(&bundled("nano")), load(&bundled("nano-draft")));
    assert!(target.tokenizer.has_same_vocabulary(&draft.tokenizer));
    let text = draft
        .tokenizer
        .decode(&draft.greedy("What is the capital of France?", 16), true);
    assert!(text.contains("Paris"), "{text}");
}

/// Any way of cutting a prompt gives the same last logits.
#[test]
fn any_split_of_a_prompt_gives_the_same_logits() {
    let Loaded { model, tokenizer } = load(&bundled("nano"));
    let ids = tokenizer.encode(HELD_TEXT, false).unwrap();
    let ids = &ids[..180];
    let whole = Loaded { model, tokenizer };
    let expected = whole.forward(ids, LogitRows::Last);
    let mut state = 7u64;
    for _ in 0..12 {
        let mut cache = whole.model.new_cache();
        let mut start = 0;
        let mut last = None;
        while start < ids.len() {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Short pieces as often as long ones.
            let piece = (1 << (state >> 61)) as usize + (state >> 40) as usize % 9;
            let end = (start + piece).min(ids.len());
            let input = ForwardInput {
                tokens: &ids[start..end],
                positions: &Positions::contiguous(start as u32, end - start),
                logits: LogitRows::Last,
                hidden: false,
                queries: false,
                replayable: false,
            };
            last = whole.model.forward(input, &mut cache).unwrap().logits;
            start = end;
        }
        let difference = (last.unwrap() - &expected)
            .unwrap()
            .abs()
            .unwrap()
            .max_all()
            .unwrap();
        let scale = expected
            .abs()
            .unwrap()
            .max_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap();
        let relative = difference.to_scalar::<f32>().unwrap() / scale;
        assert!(relative < 0.02, "{relative}");
    }
}

/// Prompts are refused by this bound before they are tokenized, so it must never be too small.
#[test]
fn no_token_stands_for_more_bytes_than_the_bound_says() {
    let tokenizer = load(&bundled("nano")).tokenizer;
    let bound = tokenizer.longest_token_bytes();
    let longest = (0..tokenizer.vocab_size() as u32)
        .map(|id| tokenizer.token_bytes(id).len())
        .max()
        .unwrap();
    assert!(
        longest <= bound && bound <= 8 * longest,
        "{longest} bytes, bound {bound}"
    );
}
