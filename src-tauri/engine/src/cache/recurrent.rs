//! State of one recurrent layer (GatedDeltaNet): the last inputs of its convolution and its delta-rule memory.

use candle_core::Tensor;

/// What a recurrent layer keeps of all tokens so far. The tensors are never written in place: every pass puts new ones here, so a copy
/// is cheap and an old state stays what it was.
#[derive(Debug, Clone, Default)]
pub struct RecurrentCache {
    state: Option<RecurrentState>,
}

/// The two parts of a recurrent state.
#[derive(Debug, Clone)]
pub struct RecurrentState {
    /// The last inputs of the causal convolution `[kernel - 1, channels]`, in the model's dtype.
    pub conv: Tensor,
    /// Memory of the delta rule `[value_heads, key_dim, value_dim]`, in f32.
    pub delta: Tensor,
}

impl RecurrentCache {
    /// The state; `None` before the first token.
    pub fn state(&self) -> Option<&RecurrentState> {
        self.state.as_ref()
    }

    /// Puts the state after a pass.
    pub fn set(&mut self, state: RecurrentState) {
        self.state = Some(state);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.state = None;
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
