use candle_core::{DType, Device, Tensor};

use super::*;
use crate::{
    cache::{
        AttentionCacheSpec, CacheError, LayerCache, LayerCacheSpec, RecurrentState, SequenceCache,
    },
    positions::Positions,
};

/// One attention layer, and for hybrids one recurrent layer. Keys are the tokens themselves; the state is a sum over all tokens so far,
/// weighed by their positions: it tells any two histories apart.
fn empty(hybrid: bool) -> SequenceCache {
    let mut specs = vec![LayerCacheSpec::Attention(AttentionCacheSpec {
        num_kv_heads: 1,
        head_dim: 1,
        dtype: DType::F32,
        device: Device::Cpu,
    })];
    if hybrid {
        specs.push(LayerCacheSpec::Recurrent);
    }
    SequenceCache::new(specs)
}

fn run(cache: &mut SequenceCache, tokens: &[u32]) {
    let start = cache.next_position();
    let positions = Positions::contiguous(start, tokens.len());
    cache
        .extend(&positions, |layers, _| -> Result<(), CacheError> {
            let rows: Vec<f32> = tokens.iter().map(|t| *t as f32).collect();
            let rows = Tensor::from_vec(rows, (1, tokens.len(), 1), &Device::Cpu)?;
            for layer in layers {
                match layer {
                    LayerCache::Attention(cache) => cache.append(&rows, &rows)?,
                    LayerCache::Recurrent(cache) => {
                        let before = match cache.state() {
                            Some(state) => state.delta.to_scalar::<f64>()?,
                            None => 0.0,
                        };
                        let sum = (u64::from(start)..)
                            .zip(tokens)
                            .map(|(at, token)| (at * 1000 + u64::from(*token)) as f64)
                            .fold(before, |sum, x| sum * 1.000_1 + x);
                        cache.set(RecurrentState {
                            conv: Tensor::zeros((3, 1), DType::F32, &Device::Cpu)?,
                            delta: Tensor::new(sum, &Device::Cpu)?,
                        });
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

fn content(cache: &SequenceCache) -> (Vec<f32>, String) {
    let keys = cache.keys(0).unwrap().flatten_all().unwrap();
    let states = format!("{:?}", state_sums(cache));
    (keys.to_vec1().unwrap(), states)
}

fn state_sums(cache: &SequenceCache) -> Vec<f64> {
    let mut copy = empty(cache.has_recurrent_layers());
    copy.restore(&cache.snapshot().unwrap()).unwrap();
    let positions = Positions::contiguous(copy.next_position(), 0);
    copy.extend(&positions, |layers, _| -> Result<Vec<f64>, CacheError> {
        layers
            .iter_mut()
            .filter_map(|layer| layer.recurrent().ok())
            .map(|cache| match cache.state() {
                Some(state) => Ok(state.delta.to_scalar::<f64>()?),
                None => Ok(0.0),
            })
            .collect()
    })
    .unwrap()
}

/// As a sequence does it: lookup, then chunks that stop at the last block boundary, publishing on the way.
fn serve(
    cache: &mut PrefixCache,
    tokens: &[u32],
    static_prefix: usize,
    hybrid: bool,
) -> (SequenceCache, usize) {
    let root = PrefixRoot::new("model", "dense");
    let mut sequence = empty(hybrid);
    let mut done = 0;
    if let Some(hit) = cache.lookup(root, tokens, static_prefix, hybrid) {
        sequence
            .restore_dense(&hit.blocks, hit.tokens, hit.states.as_ref())
            .unwrap();
        done = hit.tokens;
    }
    let cached = done;
    let mut writer = PrefixWriter::new(root);
    writer.advance(cache, tokens, &sequence).unwrap();
    let boundary = (tokens.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
    while done < tokens.len() {
        let mut end = (done + 512).min(tokens.len());
        for stop in [static_prefix, boundary] {
            if done < stop && stop < end {
                end = stop;
            }
        }
        run(&mut sequence, &tokens[done..end]);
        done = end;
        if done == static_prefix {
            writer
                .finish_static_prefix(cache, &tokens[..done], &sequence)
                .unwrap();
        }
        writer.advance(cache, tokens, &sequence).unwrap();
        if done == boundary {
            writer.keep_states(cache);
        }
    }
    writer.keep_states(cache);
    (sequence, cached)
}

fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| (i * 7 + seed * 131) % 997)
        .collect()
}

#[test]
fn a_cached_prompt_runs_its_last_token_again() {
    let mut cache = PrefixCache::new(1 << 30);
    let prompt = tokens(1, 1024);
    let (fresh, cached) = serve(&mut cache, &prompt, 0, false);
    assert_eq!(cached, 0);
    let (again, cached) = serve(&mut cache, &prompt, 0, false);
    assert_eq!((cached, content(&again)), (1023, content(&fresh)));
    // A hybrid resumes at the newest boundary that has a state and a token after it.
    let mut cache = PrefixCache::new(1 << 30);
    let (fresh, _) = serve(&mut cache, &prompt, 0, true);
    let (again, cached) = serve(&mut cache, &prompt, 0, true);
    assert_eq!((cached, content(&again)), (768, content(&fresh)));
}

#[test]
fn a_static_prefix_is_found_by_exactly_its_tokens() {
    for hybrid in [false, true] {
        let mut cache = PrefixCache::new(1 << 30);
        let mut prompt = tokens(1, 300);
        prompt.extend(tokens(2, 900));
        serve(&mut cache, &prompt, 300, hybrid);
        let mut other = tokens(1, 300);
        other.extend(tokens(3, 900));
        let (sequence, cached) = serve(&mut cache, &other, 300, hybrid);
        assert_eq!(cached, 300);
        let mut fresh = empty(hybrid);
        run(&mut fresh, &other);
        assert_eq!(content(&sequence).0, content(&fresh).0);
        // One other token, or one token less: not found.
        other[299] += 1;
        let (_, cached) = serve(&mut cache, &other, 300, hybrid);
        assert!(cached < 300, "{cached}");
        let (_, cached) = serve(&mut cache, &prompt[..500], 299, hybrid);
        assert!(cached < 299, "{cached}");
    }
}

#[test]
fn models_and_kinds_do_not_mix() {
    let mut cache = PrefixCache::new(1 << 30);
    let prompt = tokens(1, 1000);
    serve(&mut cache, &prompt, 0, false);
    for root in [
        PrefixRoot::new("model", "draft"),
        PrefixRoot::new("other", "dense"),
        PrefixRoot::new("mode", "ldense"),
    ] {
        assert!(cache.lookup(root, &prompt, 0, false).is_none());
    }
    let held = cache.bytes();
    assert!(held > 0);
    cache.forget(PrefixRoot::new("other", "dense"));
    assert_eq!(cache.bytes(), held);
    cache.forget(PrefixRoot::new("model", "dense"));
    assert_eq!((cache.bytes(), cache.blocks()), (0, 0));
}

#[test]
fn sparse_caches_are_refused() {
    let mut cache = PrefixCache::new(1 << 30);
    let mut sequence = empty(false);
    let positions = Positions::selected((0..600).map(|i| i * 2).collect()).unwrap();
    sequence
        .extend(&positions, |layers, _| -> Result<(), CacheError> {
            let rows = Tensor::zeros((1, 600, 1), DType::F32, &Device::Cpu)?;
            layers[0].attention()?.append(&rows, &rows)?;
            Ok(())
        })
        .unwrap();
    let mut writer = PrefixWriter::new(PrefixRoot::new("model", "dense"));
    assert_eq!(
        writer.advance(&mut cache, &tokens(1, 1200), &sequence),
        Err(CacheError::Sparse)
    );
    assert_eq!(cache.blocks(), 0);
}

/// Random forks, evictions and interleaving: whatever is restored is what the tokens say.
#[test]
fn conversations_never_mix() {
    use rand::{Rng, SeedableRng};
    for hybrid in [false, true] {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(u64::from(hybrid));
        // Small enough that most of it goes again.
        let budget = 40 * BLOCK_TOKENS * 8;
        let mut cache = PrefixCache::new(budget);
        let mut conversations: Vec<Vec<u32>> = vec![tokens(0, 700)];
        let mut restored = 0;
        for _ in 0..400 {
            let from = random.random_range(0..conversations.len());
            let cut = random.random_range(1..=conversations[from].len());
            let mut prompt = conversations[from][..cut].to_vec();
            // Few different tokens: blocks of one conversation turn up in others, at other places.
            let more = random.random_range(1..900);
            prompt.extend((0..more).map(|_| random.random_range(0..2u32)));
            prompt.truncate(3000);
            let static_prefix = random.random_range(0..prompt.len());
            let (sequence, cached) = serve(&mut cache, &prompt, static_prefix, hybrid);
            let mut fresh = empty(hybrid);
            run(&mut fresh, &prompt);
            assert!(cached < prompt.len());
            assert_eq!(content(&sequence), content(&fresh));
            assert!(cache.bytes() <= budget);
            restored += cached;
            if conversations.len() < 30 {
                conversations.push(prompt);
            } else {
                let at = random.random_range(0..30);
                conversations[at] = prompt;
            }
        }
        let statistics = cache.statistics();
        assert!(
            statistics.evicted > 100 && statistics.hits > 50,
            "{statistics:?}"
        );
        assert_eq!(statistics.tokens_restored, restored as u64);
    }
}
