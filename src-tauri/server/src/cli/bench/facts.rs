//! Prompts with one fact hidden in filler prose: does the answer still know it?

use rand::{
    Rng, SeedableRng,
    seq::{IndexedRandom, SliceRandom},
};
use rand_chacha::ChaCha8Rng;

use super::prose::SENTENCES;

/// One prompt and what its answer must contain.
#[derive(Debug, Clone)]
pub(super) struct FactCase {
    /// The user's text.
    pub(super) text: String,
    /// What only the hidden fact says.
    pub(super) answer: String,
}

const NAMES: [&str; 12] = [
    "Rosa", "Tariq", "Uma", "Liam", "Ingrid", "Mateo", "Noor", "Felix", "Yuki", "Clara", "Omar",
    "Greta",
];
const COLOURS: [&str; 8] = [
    "teal",
    "amber",
    "crimson",
    "violet",
    "silver",
    "olive",
    "turquoise",
    "ivory",
];
const PLACES: [&str; 8] = [
    "green bridge",
    "old harbor",
    "red vault",
    "stone mill",
    "north gate",
    "glass tower",
    "quiet library",
    "iron station",
];

/// A case whose text has at least `length` in the unit of `measure` (tokens, say). The fact stands at a random depth.
pub(super) fn fact_case(seed: u64, length: usize, measure: impl Fn(&str) -> usize) -> FactCase {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (fact, question, answer) = fact(&mut random);
    // One measurement of all sentences, not of every prompt: measuring is tokenizing.
    let all = SENTENCES.join(" ");
    let each = (measure(&all) as f64 / SENTENCES.len() as f64).max(1.0);
    let wanted = (length as f64 / each).ceil() as usize;
    let mut sentences = filler(&mut random, wanted);
    let depth = random.random_range(0..=sentences.len());
    sentences.insert(depth, format!("{fact} "));
    FactCase {
        text: format!("{}\n\n{question}", sentences.concat().trim_end()),
        answer,
    }
}

/// Sentences in random order: all of them before one comes again.
fn filler(random: &mut ChaCha8Rng, count: usize) -> Vec<String> {
    let mut sentences = Vec::with_capacity(count + SENTENCES.len());
    while sentences.len() < count {
        let mut round = SENTENCES;
        round.shuffle(random);
        sentences.extend(round.iter().map(|sentence| format!("{sentence} ")));
    }
    sentences.truncate(count);
    sentences
}

/// A fact, the question for it, and the answer.
fn fact(random: &mut ChaCha8Rng) -> (String, String, String) {
    let pick = |random: &mut ChaCha8Rng, from: &[&'static str]| -> &'static str {
        from.choose(random).copied().unwrap_or_default()
    };
    let name = pick(random, &NAMES);
    let place = pick(random, &PLACES);
    match random.random_range(0..3) {
        0 => {
            let code = random.random_range(10_000..100_000u32).to_string();
            (
                format!("The access code of the {place} is {code}."),
                format!("What is the access code of the {place}?"),
                code,
            )
        }
        1 => {
            let colour = pick(random, &COLOURS);
            (
                format!("{name} painted the {place} in {colour}."),
                format!("In which color did {name} paint the {place}?"),
                colour.to_string(),
            )
        }
        _ => {
            let number = random.random_range(1000..10_000u32).to_string();
            (
                format!("{name}'s badge number is {number}."),
                format!("What is {name}'s badge number?"),
                number,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fact_is_there_once_and_the_length_is_about_right() {
        let words = |text: &str| text.split_whitespace().count();
        let mut depths = Vec::new();
        for seed in 0..40 {
            let case = fact_case(seed, 500, words);
            assert_eq!(
                case.text.matches(&case.answer).count(),
                1,
                "{}",
                case.answer
            );
            let length = words(&case.text);
            assert!((450..650).contains(&length), "{length}");
            depths.push(case.text.find(&case.answer).unwrap() * 4 / case.text.len());
        }
        assert!((0..4).all(|quarter| depths.contains(&quarter)));
        assert_eq!(fact_case(3, 100, words).text, fact_case(3, 100, words).text);
    }
}
