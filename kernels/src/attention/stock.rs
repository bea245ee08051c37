//! Attention composed of stock candle operations, for devices that have no kernel of ours.

use candle_core::{D, DType, Result, Tensor};

/// Queries at a time, so that the scores stay small.
const QUERY_TILE: usize = 256;

/// [`super::attention`] on any device; arguments as there, already checked.
pub(super) fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    q_positions: &[u32],
    k_positions: &[u32],
    scale: f32,
    window: Option<usize>,
) -> Result<Tensor> {
    let (queries, heads, dim) = q.dims3()?;
    let (kv_heads, keys, _) = k.dims3()?;
    if keys == 0 || queries == 0 {
        return Tensor::zeros((queries, heads * dim), q.dtype(), q.device());
    }
    let group = heads / kv_heads;
    let mut tiles = Vec::with_capacity(queries.div_ceil(QUERY_TILE));
    for start in (0..queries).step_by(QUERY_TILE) {
        let len = QUERY_TILE.min(queries - start);
        let mut seen = Vec::with_capacity(len);
        let mut mask = vec![f32::NEG_INFINITY; len * keys];
        for (i, &position) in q_positions[start..start + len].iter().enumerate() {
            let range = super::visible(k_positions, position, window);
            seen.push(if range.is_empty() { 0f32 } else { 1f32 });
            // A row with no key in sight would be 0 / 0: let it see all, and multiply it by zero below.
            let range = if range.is_empty() { 0..keys } else { range };
            mask[i * keys..][range].fill(0.0);
        }
        let all_seen = seen.iter().all(|&s| s == 1.0);
        let mask = Tensor::from_vec(mask, (len, keys), q.device())?;
        // [len, H, D] -> [Hkv, group * len, D], so that one product serves every head of a group.
        let tile = q
            .narrow(0, start, len)?
            .reshape((len, kv_heads, group, dim))?
            .permute((1, 2, 0, 3))?
            .reshape((kv_heads, group * len, dim))?;
        let scores = tile
            .contiguous()?
            .matmul(&k.t()?.contiguous()?)?
            .to_dtype(DType::F32)?;
        let scores = (scores * f64::from(scale))?
            .reshape((kv_heads * group, len, keys))?
            .broadcast_add(&mask)?;
        let exp = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?)?
            .exp()?;
        let weights = exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)?;
        let out = weights
            .reshape((kv_heads, group * len, keys))?
            .to_dtype(v.dtype())?
            .matmul(&v.contiguous()?)?
            .reshape((heads, len, dim))?
            .transpose(0, 1)?
            .reshape((len, heads * dim))?;
        tiles.push(if all_seen {
            out
        } else {
            let seen = Tensor::from_vec(seen, (len, 1), q.device())?.to_dtype(out.dtype())?;
            out.broadcast_mul(&seen)?
        });
    }
    Tensor::cat(&tiles, 0)
}
