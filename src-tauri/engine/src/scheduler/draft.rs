//! The draft model of a target: loaded when it is first needed, gone when its target goes.

use candle_core::Device;

use super::loaded::{ModelSpec, load};
use crate::{models::Model, specprefill::DraftState, tokenizer::Tokenizer};

/// A text whose tokens show whether two tokenizers split alike: words, numbers, spaces, code, several scripts, emoji.
const PROBE: &str = "The quick brown fox's 1,234.50 jumps\n\n\tif (a_b == 0x1F) { return \"naïve\"; }  // 東京 — Привет, мир! 🙂👍🏽                      don't re-enter  https://example.org/?q=1&r=%20 \r\n مرحبا";

/// A draft model, or why there is none.
#[derive(Debug)]
pub(super) struct Draft {
    spec: ModelSpec,
    outcome: Result<Box<dyn Model>, DraftState>,
}

impl Draft {
    /// Loads the model and proves that it reads text as the same tokens as its target.
    pub(super) fn load(spec: &ModelSpec, target: &Tokenizer, device: &Device) -> Self {
        let outcome = match load(spec, device) {
            Ok(loaded) if reads_alike(target, &loaded.info.tokenizer) => {
                tracing::info!(
                    draft = spec.key,
                    mebibytes = loaded.info.weight_bytes >> 20,
                    "draft model loaded"
                );
                Ok(loaded.model)
            }
            Ok(_) => {
                tracing::warn!(
                    draft = spec.key,
                    "this draft model has another tokenizer than its target; SpecPrefill stays off"
                );
                Err(DraftState::TokenizerMismatch)
            }
            Err(error) => {
                tracing::warn!(draft = spec.key, %error, "the draft model could not be loaded; SpecPrefill stays off");
                Err(DraftState::LoadFailed)
            }
        };
        Self {
            spec: spec.clone(),
            outcome,
        }
    }

    /// True when it was loaded from this place.
    pub(super) fn is(&self, spec: &ModelSpec) -> bool {
        self.spec == *spec
    }

    /// The model, if it is usable.
    pub(super) fn model(&self) -> Option<&dyn Model> {
        self.outcome.as_deref().ok()
    }

    /// What the policy needs to know.
    pub(super) fn state(&self) -> DraftState {
        match &self.outcome {
            Ok(model) => DraftState::Ready {
                context_length: model.context_length(),
            },
            Err(state) => *state,
        }
    }
}

fn reads_alike(target: &Tokenizer, draft: &Tokenizer) -> bool {
    target.has_same_vocabulary(draft)
        && match (target.encode(PROBE, false), draft.encode(PROBE, false)) {
            (Ok(target), Ok(draft)) => target == draft,
            _ => false,
        }
}
