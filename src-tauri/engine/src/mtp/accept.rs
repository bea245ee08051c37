//! Which drafted tokens become part of the answer, and the token that follows them.
//!
//! A verify pass gives one row of logits for the last token of the answer and one for each drafted token. Row `j` is what the model
//! says after `j` drafts, so it judges draft `j` (counted from 0), and the last row judges nothing but gives one more token.
//!
//! - **Greedy**: every row goes through [`Sampler::sample`], exactly as in plain decoding, for as long as it returns the draft. Tokens,
//!   penalties and log-probabilities are therefore plain decoding's by construction.
//! - **With a temperature**: draft `x`, drawn from `q`, is taken with probability `min(1, p(x) / q(x))`; otherwise the token is
//!   drawn from `norm(max(0, p - q))`. Either way it is distributed as `p`, the model's own distribution after the
//!   request's biases, penalties, filters and temperature (Leviathan et al. 2023, "Fast Inference from Transformers via
//!   Speculative Decoding", theorem 1). `q` may be any distribution that the draft was really drawn from: filtered, over a part
//!   of the vocabulary, or all mass on one token. Which tokens a seed gives does depend on how many drafts there were.
//!
//! Rows are judged in order and each token is recorded before the next row is looked at, so every row sees the right history, and
//! nothing has to be taken back: the rows after a refusal are not touched.

use crate::sampling::{FilteredDistribution, SampleError, Sampled, Sampler};

#[cfg(test)]
mod tests;

/// The drafts of one cycle: tokens and the distributions that they were drawn from. Keeps its memory from cycle to cycle.
#[derive(Clone, Debug, Default)]
pub struct Drafts {
    tokens: Vec<u32>,
    /// One a token, then spare ones.
    distributions: Vec<FilteredDistribution>,
}

impl Drafts {
    /// No drafts: the start of a cycle. Penalties forget what was drafted before.
    pub fn clear(&mut self, sampler: &mut Sampler) {
        self.tokens.clear();
        sampler.forget_drafts();
    }

    /// Chooses the next draft from the head's `logits` over the ids `vocabulary` (ascending; `None`: the whole vocabulary), as
    /// [`Sampler::draft`] does, and returns it.
    ///
    /// # Errors
    /// See [`Sampler::draft`]; the drafts before this one stand.
    pub fn propose(
        &mut self,
        sampler: &mut Sampler,
        vocabulary: Option<&[u32]>,
        logits: &mut [f32],
    ) -> Result<u32, SampleError> {
        let token = sampler.draft(vocabulary, logits, self.next_distribution())?;
        self.tokens.push(token);
        Ok(token)
    }

    /// Adds a draft that was chosen with no draw: an argmax taken on the device, a copied word. Right at every temperature.
    pub fn push_certain(&mut self, token: u32) {
        self.next_distribution().set_certain(token);
        self.tokens.push(token);
    }

    /// Adds a draft that was drawn from `q` elsewhere.
    pub fn push(&mut self, token: u32, q: FilteredDistribution) {
        *self.next_distribution() = q;
        self.tokens.push(token);
    }

    /// The drafted tokens, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many drafts there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn next_distribution(&mut self) -> &mut FilteredDistribution {
        let place = self.tokens.len();
        if self.distributions.len() == place {
            self.distributions.push(FilteredDistribution::default());
        }
        &mut self.distributions[place]
    }
}

/// What a verify pass gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The answer's next tokens, at least one, as plain decoding would have given them one by one. All of them are recorded in the
    /// sampler's history.
    ///
    /// As many rows of the verify pass are part of the answer, and the caches keep those rows: the row of the token that
    /// was the last one before the pass, and those of all these tokens but the last, which is the next pass's first.
    pub tokens: Vec<Sampled>,
    /// How many of the tokens were drafted.
    pub accepted: usize,
    /// Whether the run ended because a draft was refused. If neither this is set nor every draft accepted, the run was cut: by `most`,
    /// by `goes_on`, or by a row that no token can be chosen from.
    pub refused: bool,
}

impl Verdict {
    fn add(&mut self, sampled: Sampled, draft: Option<u32>) -> bool {
        let accepted = draft == Some(sampled.token);
        self.accepted += usize::from(accepted);
        self.refused = draft.is_some() && !accepted;
        self.tokens.push(sampled);
        accepted
    }

    /// Whether drafts were left that no row has judged.
    pub fn was_cut(&self, drafted: usize) -> bool {
        !self.refused && self.accepted < drafted
    }
}

/// Judges `drafts` by the `logits` of a verify pass: `(drafts + 1) * vocab` values, row after row.
///
/// At most `most` tokens are given (at least one): what is left of max_tokens, or the rows up to a cache block's end. `goes_on`
/// is told of every token in order and ends the run by `false`: at a stop token, a stop string, a cancel. Rows are edited in place,
/// up to the one that ended the run.
///
/// # Errors
/// When no token can be chosen from the first row (see [`SampleError`]), or the number of values is wrong. A bad row further on
/// only ends the run before it: the next pass meets it first and reports it.
pub fn verify(
    sampler: &mut Sampler,
    drafts: &Drafts,
    logits: &mut [f32],
    most: usize,
    mut goes_on: impl FnMut(&Sampled) -> bool,
) -> Result<Verdict, SampleError> {
    sampler.forget_drafts();
    let vocab = sampler.vocab();
    let expected = (drafts.len() + 1) * vocab;
    if logits.len() != expected {
        return Err(SampleError::WrongLength {
            expected,
            found: logits.len(),
        });
    }
    let greedy = sampler.params().is_greedy();
    let mut p = FilteredDistribution::default();
    let mut verdict = Verdict::default();
    for (place, row) in logits.chunks_exact_mut(vocab).take(most.max(1)).enumerate() {
        let draft = drafts.tokens.get(place).copied();
        let judged = match draft {
            Some(draft) if !greedy => {
                judge(sampler, draft, &drafts.distributions[place], row, &mut p)
            }
            _ => sampler.sample(row),
        };
        let sampled = match judged {
            Ok(sampled) => sampled,
            Err(error) if verdict.tokens.is_empty() => return Err(error),
            Err(_) => break,
        };
        let on = goes_on(&sampled);
        if !verdict.add(sampled, draft) || !on {
            break;
        }
    }
    Ok(verdict)
}

/// [`verify`] where [`Sampler::takes_argmax`]: from the argmax of each row, found on the device (`drafts + 1` tokens; the lowest id
/// among equal logits).
///
/// # Errors
/// When the number of rows is wrong.
pub fn verify_argmax(
    sampler: &mut Sampler,
    drafts: &Drafts,
    rows: &[u32],
    most: usize,
    mut goes_on: impl FnMut(&Sampled) -> bool,
) -> Result<Verdict, SampleError> {
    let expected = drafts.len() + 1;
    if rows.len() != expected {
        return Err(SampleError::WrongLength {
            expected,
            found: rows.len(),
        });
    }
    let mut verdict = Verdict::default();
    for (place, &token) in rows.iter().take(most.max(1)).enumerate() {
        let sampled = Sampled {
            token,
            logprobs: None,
        };
        sampler.accept(token);
        let on = goes_on(&sampled);
        if !verdict.add(sampled, drafts.tokens.get(place).copied()) || !on {
            break;
        }
    }
    Ok(verdict)
}

/// Takes or replaces a draft drawn from `q`, and records the outcome. `p` is scratch.
fn judge(
    sampler: &mut Sampler,
    draft: u32,
    q: &FilteredDistribution,
    row: &mut [f32],
    p: &mut FilteredDistribution,
) -> Result<Sampled, SampleError> {
    sampler.distribution_into(row, p)?;
    let drafted = f64::from(q.probability(draft));
    // A draft that its own distribution excludes was not drawn from it, and says nothing: the token is drawn from `p` as it is.
    let token = if drafted > 0.0 {
        let u = f64::from(sampler.uniform());
        if u * drafted < f64::from(p.probability(draft)) {
            Some(draft)
        } else {
            p.subtract(q);
            sampler.draw(p)
        }
    } else {
        sampler.draw(p)
    };
    let token = token.ok_or(SampleError::NoCandidate)?;
    sampler.accept(token);
    Ok(Sampled {
        token,
        logprobs: sampler.token_logprobs(row, token),
    })
}
