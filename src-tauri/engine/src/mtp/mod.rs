//! Speculative decoding with the model's own multi-token-prediction head (DeepSeek-V3, arXiv 2412.19437; Qwen3.5): the head guesses the
//! next few tokens, one forward pass of the model checks them all.

pub mod accept;
pub mod controller;
pub mod draft_head;
pub mod draft_vocabulary;
mod head;
pub mod speculator;

pub use draft_head::{DraftHead, DraftHeads};
pub(crate) use head::Trunk;
pub use head::{HeadCache, MtpHead, SubsetHead};

pub use speculator::{CycleLimits, Speculator};

/// Whether a model can speculate with a head of its own, and if not, why.
#[derive(Debug, Clone, Copy)]
pub enum MtpSupport<'a> {
    /// It has a head.
    Ready(&'a MtpHead),
    /// Its configuration declares none.
    NoHead,
    /// Its configuration declares one, but the checkpoint has no weights for it.
    WeightsMissing,
    /// The head's weights are there, but incomplete or of wrong shapes: the message says which. The model itself is fine.
    Broken(&'a str),
}

impl<'a> MtpSupport<'a> {
    /// The head.
    pub fn head(self) -> Option<&'a MtpHead> {
        match self {
            Self::Ready(head) => Some(head),
            _ => None,
        }
    }

    /// Why there is no head, for machines; `None` when there is one.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Ready(_) => None,
            Self::NoHead => Some("no_mtp_head"),
            Self::WeightsMissing => Some("weights_missing"),
            Self::Broken(_) => Some("weights_broken"),
        }
    }
}
