//! GGUF's tensor names for Hugging Face's.

/// The GGUF name (without suffix) of a Hugging Face module path, for the architectures of this crate.
pub(crate) fn gguf_name(name: &str) -> Option<String> {
    let whole = match name {
        "model.embed_tokens" => Some("token_embd"),
        "model.norm" => Some("output_norm"),
        "lm_head" => Some("output"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.to_string());
    }
    let rest = name.strip_prefix("model.layers.")?;
    let (layer, module) = rest.split_once('.')?;
    let module = match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "mlp.gate" => "ffn_gate_inp",
        "mlp.experts.gate_proj" => "ffn_gate_exps",
        "mlp.experts.up_proj" => "ffn_up_exps",
        "mlp.experts.down_proj" => "ffn_down_exps",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}"))
}

#[cfg(test)]
mod tests {
    use super::gguf_name;

    #[test]
    fn names() {
        assert_eq!(
            gguf_name("model.embed_tokens").as_deref(),
            Some("token_embd")
        );
        assert_eq!(
            gguf_name("model.layers.12.self_attn.q_proj").as_deref(),
            Some("blk.12.attn_q")
        );
        assert_eq!(
            gguf_name("model.layers.0.mlp.down_proj").as_deref(),
            Some("blk.0.ffn_down")
        );
        assert_eq!(gguf_name("model.layers.0.unknown"), None);
        assert_eq!(gguf_name("something"), None);
    }
}
