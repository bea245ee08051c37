//! Where checkpoints put the same module: text models, vision-language wrappers and MLX conversions use different prefixes.

/// A way of naming modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// `model.layers...`, `lm_head`, `mtp...`: text checkpoints.
    Text,
    /// `model.language_model.layers...`, `lm_head`, `mtp...`: Hugging Face's vision-language checkpoints.
    Wrapped,
    /// `language_model.model.layers...`, `language_model.lm_head`, `language_model.mtp...`: MLX conversions of those.
    Mlx,
}

impl Layout {
    /// The layout of a checkpoint that has a tensor exactly where `contains` says so.
    pub(super) fn detect(contains: impl Fn(&str) -> bool) -> Self {
        [Self::Wrapped, Self::Mlx]
            .into_iter()
            .find(|layout| contains(&layout.stored("model.embed_tokens.weight")))
            .unwrap_or(Self::Text)
    }

    /// The stored name for a text model's name.
    pub(super) fn stored(self, name: &str) -> String {
        match (self, name.strip_prefix("model.")) {
            (Self::Wrapped, Some(rest)) => format!("model.language_model.{rest}"),
            (Self::Mlx, _) => format!("language_model.{name}"),
            _ => name.to_string(),
        }
    }

    /// The text model's name for a stored name; `None` for what belongs to no text model, such as an image encoder.
    pub(super) fn text(self, stored: &str) -> Option<String> {
        let outer = ["lm_head.", "mtp."];
        match self {
            Self::Text => Some(stored.to_string()),
            Self::Wrapped => match stored.strip_prefix("model.language_model.") {
                Some(rest) => Some(format!("model.{rest}")),
                None => outer
                    .iter()
                    .any(|prefix| stored.starts_with(prefix))
                    .then(|| stored.to_string()),
            },
            Self::Mlx => stored.strip_prefix("language_model.").map(str::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn names() {
        for (layout, embedding, head) in [
            (Layout::Text, "model.embed_tokens.weight", "lm_head.weight"),
            (
                Layout::Wrapped,
                "model.language_model.embed_tokens.weight",
                "lm_head.weight",
            ),
            (
                Layout::Mlx,
                "language_model.model.embed_tokens.weight",
                "language_model.lm_head.weight",
            ),
        ] {
            assert_eq!(layout.stored("model.embed_tokens.weight"), embedding);
            assert_eq!(layout.stored("lm_head.weight"), head);
            assert_eq!(Layout::detect(|name| name == embedding), layout);
            assert_eq!(
                layout.text(embedding).as_deref(),
                Some("model.embed_tokens.weight")
            );
            assert_eq!(layout.text(head).as_deref(), Some("lm_head.weight"));
        }
        assert_eq!(Layout::Wrapped.text("model.visual.pos_embed.weight"), None);
        assert_eq!(Layout::Mlx.text("vision_tower.pos_embed.weight"), None);
    }
}
