//! State of one recurrent layer (GatedDeltaNet): the last inputs of its convolution and its delta-rule memory.

use candle_core::{Result, Tensor};

/// What a recurrent layer keeps of all tokens so far. The tensors are never written in place: every pass puts new ones here, so a copy
/// is cheap and an old state stays what it was.
#[derive(Debug, Clone, Default)]
pub struct RecurrentCache {
    state: Option<RecurrentState>,
    /// Of the last pass, if it was to be replayable.
    replay: Option<Replay>,
}

/// The two parts of a recurrent state.
#[derive(Debug, Clone)]
pub struct RecurrentState {
    /// The last inputs of the causal convolution `[kernel - 1, channels]`, in the model's dtype.
    pub conv: Tensor,
    /// Memory of the delta rule `[value_heads, key_dim, value_dim]`, in f32.
    pub delta: Tensor,
}

/// What one pass did to the state, token by token: enough to do a part of it again without the layer's weights.
#[derive(Debug, Clone)]
pub struct RecurrentPass {
    /// Inputs of the convolution, `[tokens, channels]`.
    pub inputs: Tensor,
    /// Queries behind the convolution, `[tokens, key_heads, key_dim]`.
    pub q: Tensor,
    /// Keys, of the same shape.
    pub k: Tensor,
    /// Values, `[tokens, value_heads, value_dim]`.
    pub v: Tensor,
    /// Logarithms of the decay, `[tokens, value_heads]`, in f32.
    pub decay: Tensor,
    /// Strengths of the correction, of the same shape, in f32.
    pub beta: Tensor,
}

#[derive(Debug, Clone)]
struct Replay {
    before: Option<RecurrentState>,
    pass: RecurrentPass,
}

impl RecurrentCache {
    /// The state; `None` before the first token.
    pub fn state(&self) -> Option<&RecurrentState> {
        self.state.as_ref()
    }

    /// Puts the state after a pass, of which no part can be taken back.
    pub fn set(&mut self, state: RecurrentState) {
        self.state = Some(state);
        self.replay = None;
    }

    /// Puts the state after a pass, and what a part of the pass can be taken back with: the state before it and its rows.
    pub fn set_replayable(
        &mut self,
        after: RecurrentState,
        before: Option<RecurrentState>,
        pass: RecurrentPass,
    ) {
        self.state = Some(after);
        self.replay = Some(Replay { before, pass });
    }

    /// Rows of the last pass, if a part of them can be taken back.
    pub fn replayable_rows(&self) -> Option<usize> {
        self.replay
            .as_ref()
            .map(|replay| replay.pass.inputs.dims()[0])
    }

    /// What this cache is when only the first `rows` rows of the last pass count. The cache itself is not changed, and what it becomes
    /// cannot be taken back further. On the CPU the state is, bit for bit, that of a pass over those rows alone.
    ///
    /// # Errors
    /// When the last pass cannot be replayed, had fewer rows, or the device fails.
    pub fn replayed(&self, rows: usize) -> Result<Self> {
        let Some(Replay { before, pass }) = &self.replay else {
            candle_core::bail!("the last pass was not to be replayable");
        };
        let tokens = pass.inputs.dim(0)?;
        if rows > tokens {
            candle_core::bail!("{rows} rows cannot be kept of a pass of {tokens}");
        }
        let state = if rows == tokens {
            self.state.clone()
        } else if rows == 0 {
            before.clone()
        } else {
            Some(pass.run(rows, before.as_ref(), self.state.as_ref())?)
        };
        Ok(Self {
            state,
            replay: None,
        })
    }

    /// The state alone.
    pub fn without_replay(&self) -> Self {
        Self {
            state: self.state.clone(),
            replay: None,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Bytes of the state.
    pub fn bytes(&self) -> usize {
        self.state.as_ref().map_or(0, |state| {
            [&state.conv, &state.delta]
                .iter()
                .map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes())
                .sum()
        })
    }
}

impl RecurrentPass {
    /// The state after the first `rows` rows. `after`: the state after all of them, for the length of its convolution.
    fn run(
        &self,
        rows: usize,
        before: Option<&RecurrentState>,
        after: Option<&RecurrentState>,
    ) -> Result<RecurrentState> {
        let first = |tensor: &Tensor| tensor.narrow(0, 0, rows);
        let (_, delta) = headstart_kernels::gated_delta(
            &first(&self.q)?,
            &first(&self.k)?,
            &first(&self.v)?,
            &first(&self.decay)?,
            &first(&self.beta)?,
            before.map(|state| &state.delta),
        )?;
        let inputs = first(&self.inputs)?;
        let held = after.map_or(0, |state| state.conv.dims()[0]);
        let conv = if rows >= held {
            inputs.narrow(0, rows - held, held)?.force_contiguous()?
        } else {
            let old = match before {
                Some(state) => state.conv.narrow(0, rows, held - rows)?,
                None => {
                    let shape = (held - rows, inputs.dim(1)?);
                    Tensor::zeros(shape, inputs.dtype(), inputs.device())?
                }
            };
            Tensor::cat(&[&old, &inputs], 0)?
        };
        Ok(RecurrentState { conv, delta })
    }
}
