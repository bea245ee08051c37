//! Which tokens the target reads.

/// Tokens that are kept or dropped together.
pub const CHUNK_TOKENS: usize = 32;
/// Tokens at the window's end that are kept in any case: the question and the template's own words.
pub const TAIL_TOKENS: usize = 512;

/// Selects the tokens of a window by their `importance`: whole chunks of [`CHUNK_TOKENS`], those with the highest mean first, until
/// `ceil(chunks * keep_ratio)` are kept. The chunks of the last [`TAIL_TOKENS`] are among them, but take at most half of that budget: on
/// short windows they would take it all, and nothing would be left for what the draft found. The last `protected` tokens are kept
/// whatever the budget says. Returns ascending indices; at least one, unless the window is empty.
pub fn select(importance: &[f32], keep_ratio: f32, protected: usize) -> Vec<u32> {
    let len = importance.len();
    if keep_ratio >= 1.0 {
        return (0..len as u32).collect();
    }
    let chunks = len.div_ceil(CHUNK_TOKENS);
    if chunks == 0 {
        return Vec::new();
    }
    // A hair less: 0.2 of 500 chunks are 100, though 0.2 as f32 is a little more than a fifth.
    let share = (f64::from(keep_ratio) - 1e-6) * chunks as f64;
    let budget = (share.ceil() as usize).clamp(1, chunks);
    let tail = TAIL_TOKENS
        .div_ceil(CHUNK_TOKENS)
        .min((budget / 2).max(1))
        .max(protected.div_ceil(CHUNK_TOKENS) + usize::from(protected > 0))
        .min(chunks);
    let ranked = chunks - tail;
    let mean = |chunk: usize| {
        let tokens = &importance[chunk * CHUNK_TOKENS..((chunk + 1) * CHUNK_TOKENS).min(len)];
        tokens.iter().map(|x| f64::from(*x)).sum::<f64>() / tokens.len() as f64
    };
    let mut order: Vec<(usize, f64)> = (0..ranked).map(|chunk| (chunk, mean(chunk))).collect();
    // Stable: of equals, the earlier.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut kept: Vec<usize> = order
        .iter()
        .take(budget.saturating_sub(tail))
        .map(|(chunk, _)| *chunk)
        .chain(ranked..chunks)
        .collect();
    kept.sort_unstable();
    kept.into_iter()
        .flat_map(|chunk| chunk * CHUNK_TOKENS..((chunk + 1) * CHUNK_TOKENS).min(len))
        .map(|index| index as u32)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks(len: usize, at: &[usize]) -> Vec<f32> {
        let mut importance = vec![0.001; len];
        for index in at {
            importance[*index] = 1.0;
        }
        importance
    }

    fn chunks_of(selection: &[u32]) -> Vec<usize> {
        let mut chunks: Vec<usize> = selection
            .iter()
            .map(|i| *i as usize / CHUNK_TOKENS)
            .collect();
        chunks.dedup();
        chunks
    }

    #[test]
    fn the_budget_holds_and_the_best_chunks_are_in_it() {
        // 16,000 tokens are 500 chunks; a fifth of them are 100, 16 of these the tail.
        let selection = select(&peaks(16_000, &[70, 8_000, 15_000]), 0.2, 0);
        assert_eq!(selection.len(), 100 * CHUNK_TOKENS);
        let chunks = chunks_of(&selection);
        for chunk in [2, 250, 468] {
            assert!(chunks.contains(&chunk));
        }
        assert!((484..500).all(|chunk| chunks.contains(&chunk)));
        assert!(selection.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn the_tail_takes_at_most_half_of_a_small_budget() {
        // 2,060 tokens are 65 chunks, a fifth are 13: 6 for the tail, 7 for what matters.
        let selection = select(&peaks(2060, &[100, 500, 900]), 0.2, 0);
        let chunks = chunks_of(&selection);
        assert_eq!(chunks.len(), 13);
        for chunk in [3, 15, 28, 59, 64] {
            assert!(chunks.contains(&chunk), "{chunk}");
        }
        assert!(!chunks.contains(&58));
        // The last chunk is a partial one.
        assert_eq!(selection.last(), Some(&2059));
        assert_eq!(selection.len(), 12 * CHUNK_TOKENS + 2060 % CHUNK_TOKENS);
    }

    #[test]
    fn protected_tokens_are_kept_whatever_the_budget() {
        let selection = select(&peaks(4000, &[10]), 0.05, 1500);
        assert!((2500..4000).all(|index| selection.contains(&index)));
    }

    #[test]
    fn edges() {
        assert_eq!(select(&[], 0.2, 0), Vec::<u32>::new());
        assert_eq!(select(&[0.5], 0.05, 0), [0]);
        assert_eq!(select(&[0.0; 70], 1.0, 0).len(), 70);
        assert_eq!(select(&[f32::NAN; 70], 0.5, 0).len(), 38);
        // 0.2 of 40 chunks are 8, not 9.
        assert_eq!(chunks_of(&select(&[0.0; 1280], 0.2, 0)).len(), 8);
        // Equals: the earlier first.
        let chunks = chunks_of(&select(&vec![0.5; 6400], 0.5, 0));
        assert_eq!(chunks[..84], (0..84).collect::<Vec<_>>()[..]);
    }
}
