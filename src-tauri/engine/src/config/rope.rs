//! Rotary-embedding hyper-parameters and the frequencies that follow from them.
//!
//! The formulas are those of transformers' `modeling_rope_utils` (default, linear, llama3, yarn), computed in f32 as there, so that
//! angles agree to the last bit: Su et al. 2021 (arXiv 2104.09864), Peng et al. 2023 (YaRN, arXiv 2309.00071), Llama 3.1's model card.

use serde_json::Value;

use super::{ConfigSource, Key};
use crate::error::ModelError;

const THETA: Key = Key::new("rope_theta", "rope.freq_base");
const DIM: Key = Key::new("", "rope.dimension_count");
const SECTIONS: Key = Key::new("", "rope.dimension_sections");
const PARTIAL: Key = Key::new("partial_rotary_factor", "");
const SCALING_TYPE: Key = Key::new("", "rope.scaling.type");
const SCALING_FACTOR: Key = Key::new("", "rope.scaling.factor");
const SCALING_ORIGINAL: Key = Key::new("", "rope.scaling.original_context_length");
const SCALING_ATTENTION: Key = Key::new("", "rope.scaling.attn_factor");
const SCALE_LINEAR: Key = Key::new("", "rope.scale_linear");

/// How frequencies are stretched for a context longer than the one trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor` (position interpolation).
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched fully.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the first training.
        original_context: f64,
    },
    /// YaRN: interpolation by parts with a scaled attention.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Context length of the first training.
        original_context: f64,
        /// Rotations over the original context above which a dimension is kept.
        beta_fast: f64,
        /// Rotations under which a dimension is interpolated.
        beta_slow: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
        /// Round the ramp's ends to whole dimensions.
        truncate: bool,
    },
}

/// Rotary embedding of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Dimensions of a head that are rotated (the first ones).
    pub dim: usize,
    /// Stretching.
    pub scaling: RopeScaling,
    /// mRoPE: how many frequencies turn with the temporal, height and width position, interleaved; `None` for plain RoPE.
    pub mrope_section: Option<[usize; 3]>,
}

impl RopeConfig {
    /// Reads `rope_theta`, `rope_scaling` and `rope_parameters` (either may hold the base), or a GGUF's `rope.*`.
    ///
    /// # Errors
    /// When a value has the wrong type or range, or the kind of scaling is not supported.
    pub fn read(
        source: &ConfigSource,
        head_dim: usize,
        context_length: usize,
    ) -> Result<Self, ModelError> {
        let config = if source.is_gguf() {
            Self::read_gguf(source, head_dim, context_length)?
        } else {
            Self::read_json(source, head_dim, context_length)?
        };
        if config.theta <= 1.0 {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "the rotary base \"rope_theta\" is {}; expected a number above 1",
                    config.theta
                ),
            ));
        }
        if config.dim == 0 || config.dim > head_dim || !config.dim.is_multiple_of(2) {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "{} rotated dimensions do not fit a head of {head_dim}",
                    config.dim
                ),
            ));
        }
        Ok(config)
    }

    fn read_json(
        source: &ConfigSource,
        head_dim: usize,
        context_length: usize,
    ) -> Result<Self, ModelError> {
        let parameters = source
            .json("rope_parameters")
            .or_else(|| source.json("rope_scaling"));
        let number = |name: &str| -> Result<Option<f64>, ModelError> {
            match parameters.and_then(|p| p.get(name)) {
                None | Some(Value::Null) => Ok(None),
                Some(found) => match found.as_f64() {
                    Some(number) if number.is_finite() => Ok(Some(number)),
                    _ => Err(ModelError::corrupt(
                        source.path(),
                        format!("the rotary parameter \"{name}\" must be a number, found {found}"),
                    )),
                },
            }
        };
        let required = |name: &str| -> Result<f64, ModelError> {
            match number(name)? {
                Some(value) if value > 0.0 => Ok(value),
                Some(value) => Err(ModelError::corrupt(
                    source.path(),
                    format!(
                        "the rotary parameter \"{name}\" is {value}; expected a positive number"
                    ),
                )),
                None => Err(ModelError::corrupt(
                    source.path(),
                    format!("the rotary parameter \"{name}\" is missing"),
                )),
            }
        };
        let theta = match number("rope_theta")? {
            Some(theta) => theta,
            None => source.f64(THETA)?.unwrap_or(10_000.0),
        };
        let partial = match number("partial_rotary_factor")? {
            Some(partial) => partial,
            None => source.f64(PARTIAL)?.unwrap_or(1.0),
        };
        if !(0.0..=1.0).contains(&partial) {
            return Err(ModelError::corrupt(
                source.path(),
                format!("\"partial_rotary_factor\" is {partial}; expected 0 to 1"),
            ));
        }
        let kind = parameters
            .and_then(|p| p.get("rope_type").or_else(|| p.get("type")))
            .filter(|v| !v.is_null());
        let kind = match kind {
            None => "default",
            Some(Value::String(kind)) => kind.as_str(),
            Some(other) => {
                return Err(ModelError::corrupt(
                    source.path(),
                    format!("\"rope_type\" must be a text, found {other}"),
                ));
            }
        };
        let original = number("original_max_position_embeddings")?.filter(|n| *n > 0.0);
        let scaling = match kind {
            "default" | "mrope" => RopeScaling::None,
            "linear" => RopeScaling::Linear {
                factor: required("factor")?,
            },
            "llama3" => RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: required("low_freq_factor")?,
                high_freq_factor: required("high_freq_factor")?,
                original_context: required("original_max_position_embeddings")?,
            },
            "yarn" => {
                let original_context = original.unwrap_or(context_length as f64);
                let factor = match number("factor")? {
                    Some(factor) if factor > 0.0 => factor,
                    _ => context_length as f64 / original_context,
                };
                let attention_factor = match number("attention_factor")? {
                    Some(value) => value,
                    None => match (number("mscale")?, number("mscale_all_dim")?) {
                        (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => {
                            yarn_mscale(factor, mscale) / yarn_mscale(factor, all)
                        }
                        _ => yarn_mscale(factor, 1.0),
                    },
                };
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: number("beta_fast")?.filter(|b| *b > 0.0).unwrap_or(32.0),
                    beta_slow: number("beta_slow")?.filter(|b| *b > 0.0).unwrap_or(1.0),
                    attention_factor,
                    truncate: parameters
                        .and_then(|p| p.get("truncate"))
                        .and_then(Value::as_bool)
                        .unwrap_or(true),
                }
            }
            other => {
                return Err(ModelError::unsupported(
                    source.path(),
                    format!("rope_type \"{other}\""),
                    "default, linear, llama3, yarn",
                ));
            }
        };
        let dim = (head_dim as f64 * partial) as usize;
        Ok(Self {
            theta,
            dim,
            scaling,
            mrope_section: mrope_section(parameters, dim, source)?,
        })
    }

    fn read_gguf(
        source: &ConfigSource,
        head_dim: usize,
        context_length: usize,
    ) -> Result<Self, ModelError> {
        let positive = |key: Key| -> Result<Option<f64>, ModelError> {
            Ok(source.f64(key)?.filter(|n| *n > 0.0))
        };
        let factor = match positive(SCALING_FACTOR)? {
            Some(factor) => Some(factor),
            None => positive(SCALE_LINEAR)?,
        };
        let scaling = match (source.string(SCALING_TYPE)?.as_deref(), factor) {
            (None | Some("none"), None) => RopeScaling::None,
            (Some("none"), _) => RopeScaling::None,
            (None | Some("linear"), Some(factor)) if factor != 1.0 => {
                RopeScaling::Linear { factor }
            }
            (None | Some("linear"), _) => RopeScaling::None,
            (Some("yarn"), factor) => {
                let original_context = positive(SCALING_ORIGINAL)?.unwrap_or(context_length as f64);
                let factor = factor.unwrap_or(context_length as f64 / original_context);
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    attention_factor: positive(SCALING_ATTENTION)?.unwrap_or(1.0)
                        * yarn_mscale(factor, 1.0),
                    truncate: true,
                }
            }
            (Some(other), _) => {
                return Err(ModelError::unsupported(
                    source.path(),
                    format!("{} \"{other}\"", source.name(SCALING_TYPE)),
                    "none, linear, yarn (and Llama 3's rope_freqs tensor)",
                ));
            }
        };
        let dim = source.usize(DIM)?.unwrap_or(head_dim);
        Ok(Self {
            theta: source.f64(THETA)?.unwrap_or(10_000.0),
            dim,
            scaling,
            mrope_section: match source.counts(SECTIONS)? {
                Some(counts) => Some(gguf_sections(&counts, dim, source)?),
                None => None,
            },
        })
    }

    /// Inverse frequencies, f32, `dim / 2` of them, and the factor on cos and sin.
    pub fn inverse_frequencies(&self) -> (Vec<f32>, f32) {
        let half = self.dim / 2;
        let plain = |i: usize| -> f32 {
            let exponent = (2 * i) as f32 / self.dim as f32;
            1.0 / (self.theta as f32).powf(exponent)
        };
        match &self.scaling {
            RopeScaling::None => ((0..half).map(plain).collect(), 1.0),
            RopeScaling::Linear { factor } => {
                ((0..half).map(|i| plain(i) / *factor as f32).collect(), 1.0)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let (factor, low, high) = (
                    *factor as f32,
                    *low_freq_factor as f32,
                    *high_freq_factor as f32,
                );
                let original = *original_context as f32;
                let frequencies = (0..half).map(|i| {
                    let inverse = plain(i);
                    let wavelength = 2.0 * std::f32::consts::PI / inverse;
                    if wavelength < original / high {
                        inverse
                    } else if wavelength > original / low {
                        inverse / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * inverse / factor + smooth * inverse
                    }
                });
                (frequencies.collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate,
            } => {
                let dim = self.dim as f64;
                let correction = |rotations: f64| {
                    dim * (original_context / (rotations * 2.0 * std::f64::consts::PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (correction(*beta_fast), correction(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                low = low.max(0.0);
                high = high.min(dim - 1.0);
                if low == high {
                    high += 0.001;
                }
                let frequencies = (0..half).map(|i| {
                    let inverse = plain(i);
                    let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                    inverse / *factor as f32 * ramp + inverse * (1.0 - ramp)
                });
                (frequencies.collect(), *attention_factor as f32)
            }
        }
    }
}

/// `mrope_section` of an interleaved mRoPE.
fn mrope_section(
    parameters: Option<&Value>,
    dim: usize,
    source: &ConfigSource,
) -> Result<Option<[usize; 3]>, ModelError> {
    let Some(found) = parameters
        .and_then(|p| p.get("mrope_section"))
        .filter(|v| !v.is_null())
    else {
        return Ok(None);
    };
    let sections: Option<Vec<usize>> = found.as_array().map(|list| {
        list.iter()
            .filter_map(|n| n.as_u64().map(|n| n as usize))
            .collect()
    });
    match sections.as_deref() {
        Some([t, h, w]) if t.checked_add(*h).and_then(|n| n.checked_add(*w)) == Some(dim / 2) => {
            Ok(Some([*t, *h, *w]))
        }
        _ => Err(ModelError::corrupt(
            source.path(),
            format!(
                "\"mrope_section\" must be three counts that sum to {}, found {found}",
                dim / 2
            ),
        )),
    }
}

/// A GGUF's `rope.dimension_sections`: as `mrope_section`, with a fourth count of 0.
fn gguf_sections(
    counts: &[u64],
    dim: usize,
    source: &ConfigSource,
) -> Result<[usize; 3], ModelError> {
    let sum = counts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    match counts {
        [t, h, w] | [t, h, w, 0] if sum == dim as u64 / 2 => {
            Ok([*t as usize, *h as usize, *w as usize])
        }
        _ => Err(ModelError::unsupported(
            source.path(),
            format!("{} {counts:?}", source.name(SECTIONS)),
            format!("three counts that sum to {}, and 0", dim / 2),
        )),
    }
}

/// YaRN's attention scale (section 3.4 of the paper): `0.1 m ln(s) + 1` for a stretch `s` above 1.
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

#[cfg(test)]
mod tests;
