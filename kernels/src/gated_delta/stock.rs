//! The gated delta rule composed of stock candle operations, for devices that have no kernel of ours.

use candle_core::{D, DType, Result, Tensor};

use super::NORM_EPS;

/// Tokens in a chunk.
const CHUNK: usize = 64;

/// [`super::gated_delta`] on any device; arguments as there, already checked.
///
/// The chunked form of the paper: with `L` the cumulative log decay of a chunk, the corrections of its tokens solve
/// `(I + A) Delta = diag(beta) (V - diag(exp L) K S)`, where `A[t, s] = beta_t exp(L_t - L_s) k_t k_s` for `s < t`. All that does not
/// need `S` is computed for all chunks at once; then `S` goes from chunk to chunk.
pub(super) fn gated_delta(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    log_decay: &Tensor,
    beta: &Tensor,
    state: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (tokens, key_heads, key_dim) = k.dims3()?;
    let (_, heads, dim) = v.dims3()?;
    let (device, dtype) = (v.device(), v.dtype());
    let mut state = match state {
        Some(state) => state.copy()?,
        None => Tensor::zeros((heads, key_dim, dim), DType::F32, device)?,
    };
    if tokens == 0 {
        return Ok((v.copy()?, state));
    }
    let size = CHUNK.min(tokens.next_power_of_two());
    let chunks = tokens.div_ceil(size);
    // [T, H, D] -> [H, chunks, size, D]; what pads the last chunk has beta 0 and g 0, and so changes nothing.
    let split = |x: &Tensor| -> Result<Tensor> {
        let (_, h, d) = x.dims3()?;
        x.to_dtype(DType::F32)?
            .pad_with_zeros(0, 0, chunks * size - tokens)?
            .transpose(0, 1)?
            .contiguous()?
            .reshape((h, chunks, size, d))
    };
    let group = heads / key_heads;
    let unit = |x: &Tensor, scale: f64| -> Result<Tensor> {
        let x = split(x)?;
        let norm = (x.sqr()?.sum_keepdim(D::Minus1)? + f64::from(NORM_EPS))?.sqrt()?;
        let x = (x.broadcast_div(&norm)? * scale)?;
        x.unsqueeze(1)?
            .expand((key_heads, group, chunks, size, key_dim))?
            .contiguous()?
            .reshape((heads, chunks, size, key_dim))
    };
    let (q, k) = (unit(q, (key_dim as f64).powf(-0.5))?, unit(k, 1.0)?);
    let v = split(v)?;
    let beta = split(&beta.unsqueeze(2)?)?;
    // Below -104 the decay is 0 in f32 anyway; an infinity would make NaNs of the zeros in the product.
    let g = split(&log_decay.maximum(-104f32)?.unsqueeze(2)?)?;

    let mask = |keep: &dyn Fn(usize, usize) -> bool| -> Result<Tensor> {
        let values: Vec<f32> = (0..size * size)
            .map(|i| f32::from(keep(i / size, i % size)))
            .collect();
        Tensor::from_vec(values, (1, 1, size, size), device)
    };
    let lower = mask(&|t, s| s <= t)?;
    let strictly = mask(&|t, s| s < t)?;
    let all = (heads, chunks, size, size);
    // L_t - L_s is summed from g between s and t, never as a difference of two long sums, which would lose small decays
    // behind a large one. Above the diagonal it is 0 and masked.
    let between = lower
        .expand(all)?
        .contiguous()?
        .matmul(&g.broadcast_mul(&strictly)?)?;
    let decay = between.exp()?.broadcast_mul(&lower)?;
    let from_start = lower.expand(all)?.contiguous()?.matmul(&g)?.exp()?;
    let to_end = decay
        .narrow(2, size - 1, 1)?
        .transpose(2, 3)?
        .contiguous()?;

    let k_t = k.transpose(2, 3)?.contiguous()?;
    let a = (k.matmul(&k_t)? * &decay)?
        .broadcast_mul(&strictly)?
        .broadcast_mul(&beta)?;
    let p = (q.matmul(&k_t)? * &decay)?;
    // (I + A)^-1 by merging inverted diagonal blocks in pairs: [X 0; B Y]^-1 = [X^-1 0; -Y^-1 B X^-1 Y^-1]. Every entry on
    // the way is one of the result, unlike in the Neumann product, whose powers of A reach 1e18 where keys repeat.
    let mut inverse = mask(&|t, s| s == t)?.expand(all)?.contiguous()?;
    let mut block = 1;
    while block < size {
        let pairs = mask(&|t, s| {
            t / (2 * block) == s / (2 * block)
                && t % (2 * block) >= block
                && s % (2 * block) < block
        })?;
        let below = inverse
            .matmul(&a.broadcast_mul(&pairs)?)?
            .matmul(&inverse)?;
        inverse = (inverse - below)?;
        block *= 2;
    }
    let u = inverse.matmul(&v.broadcast_mul(&beta)?)?;
    let w = inverse.matmul(&k.broadcast_mul(&(&beta * &from_start)?)?)?;
    let q = q.broadcast_mul(&from_start)?;
    let k_t = k.broadcast_mul(&to_end)?.transpose(2, 3)?.contiguous()?;
    let total = from_start.narrow(2, size - 1, 1)?;

    let mut out = Vec::with_capacity(chunks);
    let chunk = |x: &Tensor, i: usize| x.narrow(1, i, 1)?.squeeze(1)?.contiguous();
    for i in 0..chunks {
        let delta = (chunk(&u, i)? - chunk(&w, i)?.matmul(&state)?)?;
        out.push((chunk(&q, i)?.matmul(&state)? + chunk(&p, i)?.matmul(&delta)?)?);
        let kept = state.broadcast_mul(&chunk(&total, i)?)?;
        state = (kept + chunk(&k_t, i)?.matmul(&delta)?)?;
    }
    let out = Tensor::cat(&out, 1)?
        .narrow(1, 0, tokens)?
        .transpose(0, 1)?
        .to_dtype(dtype)?
        .contiguous()?;
    Ok((out, state))
}
