//! The definitions, word for word, in double precision with a full sort.

use super::SamplingParams;

/// Biases and penalties; single precision, as the definitions are applied to `f32` logits.
pub(super) fn edited(
    params: &SamplingParams,
    row: &[f32],
    prompt: &[u32],
    generated: &[u32],
) -> Vec<f32> {
    let mut row = row.to_vec();
    for &(token, bias) in &params.logit_bias {
        row[token as usize] += bias;
    }
    for (token, logit) in (0..).zip(&mut row) {
        let count = generated.iter().filter(|&&other| other == token).count();
        if params.repetition_penalty != 1.0 && (count > 0 || prompt.contains(&token)) {
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
        }
        if count > 0 {
            *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
        }
    }
    row
}

/// Tokens from the most to the least probable, with their weights relative to the first.
pub(super) fn ordered(row: &[f32], temperature: f32) -> Vec<(u32, f64)> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    let logit = |token: u32| f64::from(row[token as usize]);
    order.sort_by(|&a, &b| logit(b).partial_cmp(&logit(a)).unwrap().then(a.cmp(&b)));
    let max = logit(order[0]);
    let weight = |token| ((logit(token) - max) / f64::from(temperature)).exp();
    order
        .into_iter()
        .map(|token| (token, weight(token)))
        .collect()
}

/// How many tokens of [`ordered`] the filters keep, when the limits of top-p and min-p are moved by `slack`.
///
/// Two computations with different rounding can disagree about a token exactly at a limit: the slack says which counts are right.
pub(super) fn kept(ordered: &[(u32, f64)], params: &SamplingParams, slack: f64) -> usize {
    let mut count = match params.top_k {
        0 => ordered.len(),
        k => k.min(ordered.len()),
    };
    if params.top_p < 1.0 {
        let total: f64 = ordered[..count].iter().map(|entry| entry.1).sum();
        let need = (f64::from(params.top_p) + slack) * total;
        let mut mass = 0.0;
        let reached = ordered[..count].iter().position(|entry| {
            mass += entry.1;
            mass >= need
        });
        count = reached.map_or(count, |place| place + 1);
    }
    // The weight below which the sampler counts a token as impossible.
    let least = (f64::from(params.min_p) * (1.0 - 20.0 * slack)).max((-87.0 - 100.0 * slack).exp());
    ordered[..count]
        .iter()
        .take_while(|entry| entry.1 >= least)
        .count()
}

/// Probabilities by token over the first `kept` of `ordered`.
pub(super) fn probabilities(ordered: &[(u32, f64)], kept: usize) -> Vec<f64> {
    let total: f64 = ordered[..kept].iter().map(|entry| entry.1).sum();
    let mut probabilities = vec![0.0; ordered.len()];
    for &(token, weight) in &ordered[..kept] {
        probabilities[token as usize] = weight / total;
    }
    probabilities
}
