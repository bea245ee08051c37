//! The vocabulary and merge rules behind a pipeline, shared between its copies.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

use super::spm::SentencePieceBpe;

/// A model of the `tokenizers` crate, or ours for SentencePiece vocabularies. A clone shares it.
#[derive(Clone)]
pub(crate) struct SharedModel(Arc<Kind>);

enum Kind {
    Crate(ModelWrapper),
    SentencePiece(SentencePieceBpe),
}

impl From<ModelWrapper> for SharedModel {
    fn from(mut model: ModelWrapper) -> Self {
        if let ModelWrapper::BPE(bpe) = &mut model {
            // A training setting that would make encoding random.
            bpe.dropout = None;
        }
        Self(Arc::new(Kind::Crate(model)))
    }
}

impl From<SentencePieceBpe> for SharedModel {
    fn from(model: SentencePieceBpe) -> Self {
        Self(Arc::new(Kind::SentencePiece(model)))
    }
}

impl<'de> Deserialize<'de> for SharedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Self::from)
    }
}

impl Model for SharedModel {
    type Trainer = BpeTrainer;

    fn tokenize(&self, sequence: &str) -> tokenizers::Result<Vec<Token>> {
        match &*self.0 {
            Kind::Crate(model) => model.tokenize(sequence),
            Kind::SentencePiece(model) => model.tokenize(sequence),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match &*self.0 {
            Kind::Crate(model) => model.token_to_id(token),
            Kind::SentencePiece(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match &*self.0 {
            Kind::Crate(model) => model.id_to_token(id),
            Kind::SentencePiece(model) => model.id_to_token(id).map(str::to_owned),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match &*self.0 {
            Kind::Crate(model) => model.get_vocab(),
            Kind::SentencePiece(model) => model.vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match &*self.0 {
            Kind::Crate(model) => model.get_vocab_size(),
            Kind::SentencePiece(model) => model.len(),
        }
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a tokenizer in use is not saved".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}
