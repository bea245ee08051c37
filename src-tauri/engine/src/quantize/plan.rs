//! What becomes of every tensor: copied, shifted, or quantized, under which name.

use std::collections::BTreeMap;

use candle_core::DType;

use crate::{
    error::ModelError,
    weights::{AffineFormat, SafetensorsSource},
};

/// An exception for modules whose path matches a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// Module path with `*` for any text, for example `*.embed_tokens`.
    pub pattern: String,
    /// Bits; `None` leaves the module unquantized.
    pub bits: Option<u32>,
}

/// How to quantize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// Bits and group size of all modules without an exception.
    pub format: AffineFormat,
    /// Exceptions; the first that matches holds.
    pub keep: Vec<Keep>,
}

/// Rows of a stored tensor, seen as a matrix of its last dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) tensor: String,
    pub(super) start: usize,
    pub(super) count: usize,
}

/// What is done to a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// As they are.
    Copy,
    /// Plus the 1 that zero-centred norms are stored without.
    AddOne,
    /// Quantized.
    Quantize(AffineFormat),
}

/// One tensor of the new checkpoint (three, when quantized).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Name without `.weight` for modules' weights, else the whole name.
    pub(super) name: String,
    /// True when the name gets `.weight`.
    pub(super) is_weight: bool,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) parts: Vec<Rows>,
    pub(super) action: Action,
}

impl Item {
    /// The tensors to write: name, dtype as safetensors calls it, shape.
    pub(super) fn outputs(&self) -> Vec<(String, &'static str, Vec<usize>)> {
        let dtype = match self.dtype {
            DType::BF16 => "BF16",
            DType::F16 => "F16",
            _ => "F32",
        };
        let weight = if self.is_weight {
            format!("{}.weight", self.name)
        } else {
            self.name.clone()
        };
        let Action::Quantize(format) = self.action else {
            return vec![(weight, dtype, self.shape.clone())];
        };
        let columns = self.shape.last().copied().unwrap_or(0);
        let with_last = |last: usize| {
            let mut shape = self.shape.clone();
            if let Some(dimension) = shape.last_mut() {
                *dimension = last;
            }
            shape
        };
        let groups = with_last(columns / format.group);
        vec![
            (
                weight,
                "U32",
                with_last(columns * format.bits as usize / 32),
            ),
            (format!("{}.scales", self.name), dtype, groups.clone()),
            (format!("{}.biases", self.name), dtype, groups),
        ]
    }
}

/// The whole plan.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
    /// Stored tensors that are left out: image encoders.
    pub(super) dropped: Vec<String>,
}

/// Plans the new checkpoint. `hybrid`: the source is of the Qwen3.5 family, which MLX names and shifts in its own way.
///
/// # Errors
/// When the source is quantized already or holds tensors that are not floats.
pub(super) fn plan(
    source: &SafetensorsSource,
    options: &QuantizeOptions,
    hybrid: bool,
) -> Result<Plan, ModelError> {
    let raw = source.is_raw();
    let mut plan = Plan::default();
    // Experts of one layer that are stored one by one are gathered here, in the order of their numbers.
    let mut stacks: BTreeMap<String, BTreeMap<usize, Item>> = BTreeMap::new();
    for stored in source.names() {
        let Some(name) = source.text_name(stored) else {
            plan.dropped.push(stored.to_string());
            continue;
        };
        let (shape, dtype) = source.stored_float(stored)?;
        let module = name.strip_suffix(".weight");
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / columns.max(1);
        let item = |name: &str, shape: Vec<usize>, parts: Vec<Rows>| Item {
            name: out_name(name, hybrid),
            is_weight: true,
            shape,
            dtype,
            parts,
            action: Action::Copy,
        };
        let whole = vec![Rows {
            tensor: stored.to_string(),
            start: 0,
            count: rows,
        }];
        if let Some(prefix) = name.strip_suffix(".experts.gate_up_proj")
            && let [experts, both, hidden] = *shape.as_slice()
        {
            for (part, projection) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                let parts = (0..experts)
                    .map(|expert| Rows {
                        tensor: stored.to_string(),
                        start: expert * both + part * (both / 2),
                        count: both / 2,
                    })
                    .collect();
                let name = format!("{prefix}.switch_mlp.{projection}");
                plan.items
                    .push(item(&name, vec![experts, both / 2, hidden], parts));
            }
        } else if let Some(prefix) = name.strip_suffix(".experts.down_proj") {
            plan.items.push(item(
                &format!("{prefix}.switch_mlp.down_proj"),
                shape,
                whole,
            ));
        } else if let Some((stack, expert)) = module.and_then(single_expert) {
            stacks
                .entry(stack.clone())
                .or_default()
                .insert(expert, item(&stack, shape, whole));
        } else {
            let mut item = item(module.unwrap_or(name.as_str()), shape, whole);
            item.is_weight = module.is_some();
            if hybrid && raw && is_centred_norm(&name) {
                item.action = Action::AddOne;
            }
            if name.ends_with(".conv1d.weight")
                && let [channels, 1, kernel] = *item.shape.as_slice()
            {
                // The axis of length 1 moves: the values stay in their order.
                item.shape = vec![channels, kernel, 1];
            }
            plan.items.push(item);
        }
    }
    for (_, experts) in stacks {
        let count = experts.len();
        let mut experts = experts.into_values();
        if let Some(mut first) = experts.next() {
            first.parts.extend(experts.flat_map(|expert| expert.parts));
            first.shape.insert(0, count);
            plan.items.push(first);
        }
    }
    for item in &mut plan.items {
        if let Some(format) = format_of(item, options) {
            item.action = Action::Quantize(format);
        }
    }
    plan.items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(plan)
}

fn out_name(name: &str, hybrid: bool) -> String {
    if hybrid {
        format!("language_model.{name}")
    } else {
        name.to_string()
    }
}

/// `a.mlp.experts.12.up_proj` -> (`a.mlp.switch_mlp.up_proj`, 12).
fn single_expert(module: &str) -> Option<(String, usize)> {
    let (prefix, rest) = module.split_once(".experts.")?;
    let (number, projection) = rest.split_once('.')?;
    Some((
        format!("{prefix}.switch_mlp.{projection}"),
        number.parse().ok()?,
    ))
}

fn is_centred_norm(name: &str) -> bool {
    name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight")
        || name.ends_with("layernorm.weight")
        || name.ends_with("pre_fc_norm_hidden.weight")
        || name.ends_with("pre_fc_norm_embedding.weight")
}

/// Modules that lose more by quantization than they save: routers, the small gates of GatedDeltaNet, the MTP head's first projection.
const UNQUANTIZED: [&str; 6] = [
    "*.mlp.gate",
    "*.shared_expert_gate",
    "*.in_proj_a",
    "*.in_proj_b",
    "*mtp.fc",
    "*.conv1d",
];

/// The format that an item is quantized in, if it is.
fn format_of(item: &Item, options: &QuantizeOptions) -> Option<AffineFormat> {
    let columns = item.shape.last().copied()?;
    if !item.is_weight
        || item.shape.len() < 2
        || item.action != Action::Copy
        || !columns.is_multiple_of(options.format.group)
    {
        return None;
    }
    let exception = options
        .keep
        .iter()
        .find(|keep| matches(&keep.pattern, &item.name));
    match exception {
        Some(keep) => keep.bits.map(|bits| AffineFormat {
            bits,
            ..options.format
        }),
        None if UNQUANTIZED
            .iter()
            .any(|pattern| matches(pattern, &item.name)) =>
        {
            None
        }
        None => Some(options.format),
    }
}

/// Whether `text` fits `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = pieces.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else {
        return rest.is_empty();
    };
    for piece in middle {
        match rest.split_once(piece) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches(
            "*.embed_tokens",
            "language_model.model.embed_tokens"
        ));
        assert!(matches(
            "*.layers.*.v_proj",
            "model.layers.3.self_attn.v_proj"
        ));
        assert!(!matches(
            "*.layers.*.v_proj",
            "model.layers.3.self_attn.v_proj.x"
        ));
        assert!(
            matches("lm_head", "lm_head")
                && !matches("lm_head", "lm_heads")
                && !matches("a*", "ba")
        );
        assert!(matches("*", "") && matches("a*a", "aba") && !matches("a*a", "a"));
    }

    #[test]
    fn experts_and_norms_by_name() {
        assert_eq!(
            single_expert("model.layers.0.mlp.experts.12.up_proj"),
            Some(("model.layers.0.mlp.switch_mlp.up_proj".into(), 12))
        );
        assert_eq!(
            single_expert("model.layers.0.mlp.experts.gate_up_proj"),
            None
        );
        for (name, centred) in [
            ("model.norm.weight", true),
            ("model.layers.0.input_layernorm.weight", true),
            ("model.layers.3.self_attn.q_norm.weight", true),
            ("mtp.pre_fc_norm_hidden.weight", true),
            ("model.layers.0.linear_attn.norm.weight", false),
            ("model.layers.0.mlp.up_proj.weight", false),
        ] {
            assert_eq!(is_centred_norm(name), centred, "{name}");
        }
    }
}
