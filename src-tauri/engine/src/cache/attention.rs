//! Keys and values of one attention layer.

use candle_core::{DType, Device, Result, Tensor};

/// Rows by which an empty buffer starts and never grows less.
const GROWTH: usize = 256;

/// Shape, dtype and place of one layer's keys and values.
#[derive(Debug, Clone)]
pub struct AttentionCacheSpec {
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The model's dtype: what is stored is never widened.
    pub dtype: DType,
    /// Device of the buffers.
    pub device: Device,
}

/// Growing buffers `[kv_heads, capacity, head_dim]` of which the first `len` rows are in use.
///
/// Rows are written in place, so a view taken earlier sees later rows only if it was narrowed to them: views never outlive one layer's
/// forward pass.
#[derive(Debug)]
pub struct AttentionCache {
    spec: AttentionCacheSpec,
    buffers: Option<(Tensor, Tensor)>,
    len: usize,
}

/// A deep copy of one layer's keys and values.
#[derive(Debug, Clone)]
pub struct AttentionSnapshot {
    rows: Option<(Tensor, Tensor)>,
    len: usize,
}

impl AttentionCache {
    /// An empty cache; buffers come with the first token.
    pub fn new(spec: AttentionCacheSpec) -> Self {
        Self {
            spec,
            buffers: None,
            len: 0,
        }
    }

    /// Tokens held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no token is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn capacity(&self) -> usize {
        self.buffers.as_ref().map_or(0, |(keys, _)| keys.dims()[1])
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        2 * self.capacity()
            * self.spec.num_kv_heads
            * self.spec.head_dim
            * self.spec.dtype.size_in_bytes()
    }

    /// Makes room for `rows` in all, keeping what is held.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn reserve(&mut self, rows: usize) -> Result<()> {
        let capacity = self.capacity();
        if rows <= capacity {
            return Ok(());
        }
        // Doubling keeps the copying linear in the length; the step keeps short sequences from copying at all.
        let capacity = rows.max(capacity * 2).next_multiple_of(GROWTH);
        let shape = (self.spec.num_kv_heads, capacity, self.spec.head_dim);
        let grown = (
            Tensor::zeros(shape, self.spec.dtype, &self.spec.device)?,
            Tensor::zeros(shape, self.spec.dtype, &self.spec.device)?,
        );
        if self.len > 0
            && let Some((keys, values)) = &self.buffers
        {
            grown
                .0
                .slice_set(&keys.narrow(1, 0, self.len)?.contiguous()?, 1, 0)?;
            grown
                .1
                .slice_set(&values.narrow(1, 0, self.len)?.contiguous()?, 1, 0)?;
        }
        self.buffers = Some(grown);
        Ok(())
    }

    /// Appends `keys` and `values`, each `[kv_heads, tokens, head_dim]` in the cache's dtype.
    ///
    /// # Errors
    /// When the dtype or shape is another one (a widened key would make every later step slow, so it is refused), or memory ran out.
    pub fn append(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if keys.dtype() != self.spec.dtype || values.dtype() != self.spec.dtype {
            candle_core::bail!(
                "keys of {:?} and values of {:?} do not belong in a cache of {:?}",
                keys.dtype(),
                values.dtype(),
                self.spec.dtype
            );
        }
        let tokens = keys.dim(1)?;
        self.reserve(self.len + tokens)?;
        if let Some((key_buffer, value_buffer)) = &self.buffers {
            key_buffer.slice_set(&keys.contiguous()?, 1, self.len)?;
            value_buffer.slice_set(&values.contiguous()?, 1, self.len)?;
        }
        self.len += tokens;
        Ok(())
    }

    /// Keys and values in use, `[kv_heads, len, head_dim]`, without copying.
    ///
    /// # Errors
    /// When nothing is held.
    pub fn view(&self) -> Result<(Tensor, Tensor)> {
        match &self.buffers {
            Some((keys, values)) => {
                Ok((keys.narrow(1, 0, self.len)?, values.narrow(1, 0, self.len)?))
            }
            None => candle_core::bail!("the cache is empty"),
        }
    }

    /// A deep copy of the keys and values of some tokens, `[kv_heads, rows, head_dim]` each.
    ///
    /// # Errors
    /// When they are not held, or the device has no memory left.
    pub fn copy_rows(&self, rows: std::ops::Range<usize>) -> Result<(Tensor, Tensor)> {
        if rows.start > rows.end || rows.end > self.len {
            candle_core::bail!("rows {rows:?} are not in a cache of {} tokens", self.len);
        }
        let (keys, values) = self.view()?;
        let copy = |tensor: Tensor| tensor.narrow(1, rows.start, rows.len())?.force_contiguous();
        Ok((copy(keys)?, copy(values)?))
    }

    /// Forgets all but the first `len` tokens. Does nothing when fewer are held.
    pub fn trim(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// A deep copy.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn snapshot(&self) -> Result<AttentionSnapshot> {
        let rows = match &self.buffers {
            Some((keys, values)) if self.len > 0 => Some((
                keys.narrow(1, 0, self.len)?.force_contiguous()?,
                values.narrow(1, 0, self.len)?.force_contiguous()?,
            )),
            _ => None,
        };
        Ok(AttentionSnapshot {
            rows,
            len: self.len,
        })
    }

    /// Replaces what is held by a snapshot's copy.
    ///
    /// # Errors
    /// When the device has no memory left; what was held is then gone and the cache is empty.
    pub fn restore(&mut self, snapshot: &AttentionSnapshot) -> Result<()> {
        self.len = 0;
        if let Some((keys, values)) = &snapshot.rows {
            self.append(keys, values)?;
        }
        debug_assert_eq!(self.len, snapshot.len);
        Ok(())
    }
}

impl AttentionSnapshot {
    /// Tokens held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when no token is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the copy.
    pub fn bytes(&self) -> usize {
        self.rows.as_ref().map_or(0, |(keys, values)| {
            (keys.elem_count() + values.elem_count()) * keys.dtype().size_in_bytes()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(dtype: DType) -> AttentionCache {
        AttentionCache::new(AttentionCacheSpec {
            num_kv_heads: 2,
            head_dim: 4,
            dtype,
            device: Device::Cpu,
        })
    }

    fn rows(start: f32, tokens: usize) -> Tensor {
        let values: Vec<f32> = (0..2 * tokens * 4).map(|i| start + i as f32).collect();
        Tensor::from_vec(values, (2, tokens, 4), &Device::Cpu).unwrap()
    }

    fn held(cache: &AttentionCache) -> Vec<f32> {
        cache
            .view()
            .unwrap()
            .0
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap()
    }

    #[test]
    fn growth_keeps_what_is_held() {
        let mut grown = cache(DType::F32);
        let mut reserved = cache(DType::F32);
        reserved.reserve(2000).unwrap();
        for i in 0..7 {
            let new = rows(1000.0 * i as f32, 100);
            grown.append(&new, &new).unwrap();
            reserved.append(&new, &new).unwrap();
        }
        assert_eq!(grown.len(), 700);
        assert_eq!(held(&grown), held(&reserved));
        assert!(grown.bytes() >= 2 * 700 * 2 * 4 * 4);
    }

    #[test]
    fn a_snapshot_does_not_see_later_writes() {
        let mut cache = cache(DType::F32);
        cache.append(&rows(0.0, 5), &rows(0.0, 5)).unwrap();
        let before = held(&cache);
        let snapshot = cache.snapshot().unwrap();
        cache.trim(2);
        cache.append(&rows(500.0, 9), &rows(500.0, 9)).unwrap();
        assert_ne!(held(&cache), before);
        cache.restore(&snapshot).unwrap();
        assert_eq!(held(&cache), before);
        assert_eq!(snapshot.bytes(), 2 * 5 * 2 * 4 * 4);
    }

    #[test]
    fn another_dtype_is_refused() {
        let mut cache = cache(DType::BF16);
        assert!(cache.append(&rows(0.0, 1), &rows(0.0, 1)).is_err());
        assert!(cache.is_empty());
    }
}
