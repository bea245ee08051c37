//! Sampling defaults: those that a model's maker recommends, else ours.

use std::path::Path;

use serde::Deserialize;

/// Values used where a request names none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Candidates kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass kept; 1 keeps all.
    pub top_p: f32,
    /// Least probability relative to the best; 0 keeps all.
    pub min_p: f32,
    /// Divisor for repeated tokens; 1 is off.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationConfig {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// The defaults of the model at `path`: its `generation_config.json` where it has one. One that cannot be read is reported in the
    /// log and left out: it holds recommendations only.
    pub fn of_model(path: &Path) -> Self {
        let file = path.join("generation_config.json");
        let Ok(text) = std::fs::read_to_string(&file) else {
            return Self::default();
        };
        let config: GenerationConfig = serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "ignoring the recommended sampling");
            GenerationConfig::default()
        });
        let ours = Self::default();
        Self {
            temperature: config
                .temperature
                .filter(|t| *t >= 0.0)
                .unwrap_or(ours.temperature),
            top_k: config.top_k.unwrap_or(ours.top_k),
            top_p: config
                .top_p
                .filter(|p| *p > 0.0 && *p <= 1.0)
                .unwrap_or(ours.top_p),
            min_p: config
                .min_p
                .filter(|p| (0.0..=1.0).contains(p))
                .unwrap_or(ours.min_p),
            repetition_penalty: config
                .repetition_penalty
                .filter(|p| *p > 0.0)
                .unwrap_or(ours.repetition_penalty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recommended_values_are_taken_and_wrong_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            SamplingDefaults::of_model(folder.path()),
            SamplingDefaults::default()
        );
        let file = folder.path().join("generation_config.json");
        std::fs::write(
            &file,
            r#"{"temperature": 0.6, "top_k": 20, "top_p": 7, "eos_token_id": [1]}"#,
        )
        .unwrap();
        let defaults = SamplingDefaults::of_model(folder.path());
        assert_eq!(
            (defaults.temperature, defaults.top_k, defaults.top_p),
            (0.6, 20, 0.95)
        );
        std::fs::write(&file, "oops").unwrap();
        assert_eq!(
            SamplingDefaults::of_model(folder.path()),
            SamplingDefaults::default()
        );
    }
}
