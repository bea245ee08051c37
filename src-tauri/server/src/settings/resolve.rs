//! What one request is answered with: its own fields, then its model's settings, then the defaults. The one place for all endpoints
//! and the command line.

use headstart_engine::{
    request::MtpSettings,
    scheduler::ModelSpec,
    specprefill::{Scorer, SpecPrefillSettings},
};
use serde::Deserialize;

use super::{
    Settings,
    model::{ModelSettings, OutOfRange, ScorerChoice, checked_depth, checked_ratio},
};

/// What a request may say about SpecPrefill and MTP; every field is optional.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RequestSettings {
    /// Read a long prompt sparsely.
    pub specprefill: Option<bool>,
    /// Share of the ranked tokens to keep.
    pub specprefill_keep_ratio: Option<f32>,
    /// The same under another server's name for it; values above 1 are percent. `specprefill_keep_ratio` wins.
    pub specprefill_keep_pct: Option<f32>,
    /// Prompts with at most this many new tokens are read whole.
    pub specprefill_threshold: Option<usize>,
    /// Name of the draft model.
    pub specprefill_draft_model: Option<String>,
    /// Who ranks the prompt's tokens.
    pub specprefill_scorer: Option<ScorerChoice>,
    /// Decode several tokens in one step.
    pub mtp: Option<bool>,
    /// Always draft so many tokens.
    pub mtp_depth: Option<usize>,
}

/// Why a request cannot be answered as it asks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// The field of [`RequestSettings`].
    pub field: &'static str,
    /// What is wrong with it.
    pub message: String,
}

/// Everything about speed that one request depends on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Resolved {
    /// For the engine.
    pub specprefill: SpecPrefillSettings,
    /// For the engine.
    pub mtp: MtpSettings,
    /// The last so many messages are read whole.
    pub protect_last_messages: usize,
    /// What is wrong in the settings, for the log: the request is answered without it.
    pub warning: Option<String>,
}

impl RequestSettings {
    /// The same as a layer of settings, with values checked and in one unit.
    fn checked(&self) -> Result<ModelSettings, RequestError> {
        let named = |field| {
            move |error: OutOfRange| RequestError {
                field,
                message: format!("{error}."),
            }
        };
        let ratio = self
            .specprefill_keep_ratio
            .map(|ratio| checked_ratio("specprefill_keep_ratio", ratio))
            .transpose()
            .map_err(named("specprefill_keep_ratio"))?;
        let percent = self
            .specprefill_keep_pct
            .map(|share| if share > 1.0 { share / 100.0 } else { share })
            .map(|ratio| checked_ratio("specprefill_keep_pct (as a ratio)", ratio))
            .transpose()
            .map_err(named("specprefill_keep_pct"))?;
        let depth = self
            .mtp_depth
            .map(|depth| checked_depth("mtp_depth", depth))
            .transpose()
            .map_err(named("mtp_depth"))?;
        Ok(ModelSettings {
            specprefill_enabled: self.specprefill,
            specprefill_threshold: self.specprefill_threshold,
            specprefill_keep_ratio: ratio.or(percent),
            draft_model: self.specprefill_draft_model.clone(),
            specprefill_scorer: self.specprefill_scorer,
            mtp_enabled: self.mtp,
            mtp_fixed_depth: depth,
            ..ModelSettings::default()
        })
    }
}

impl Settings {
    /// What is set for a model: its own table over the defaults. A table may leave out the first parts of the model's name; the
    /// longest name wins, and letters' case does not matter.
    #[must_use]
    pub fn for_model(&self, id: &str) -> ModelSettings {
        let id = id.to_lowercase();
        self.models
            .iter()
            .filter(|(name, _)| {
                let rest = id.strip_suffix(&name.to_lowercase());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
            })
            .max_by_key(|(name, _)| name.len())
            .map_or_else(ModelSettings::default, |(_, own)| own.clone())
            .over(&self.defaults)
    }

    /// Resolves one request to the model `id`. `find` looks a draft model up by name; it is asked only when its answer matters.
    ///
    /// With the draft scorer and no draft model named, the model called like this one with `-draft` behind it is taken where there
    /// is one.
    ///
    /// # Errors
    /// When a field of the request is out of its range or names a draft that cannot be used. A wrong name in the settings is no error
    /// of the request: it goes on without a draft, with a warning.
    pub fn resolve(
        &self,
        id: &str,
        request: &RequestSettings,
        find: impl Fn(&str) -> Result<ModelSpec, String>,
    ) -> Result<Resolved, RequestError> {
        let own = request.checked()?;
        let all = own.over(&self.for_model(id));
        let (specprefill, mtp) = (SpecPrefillSettings::default(), MtpSettings::default());
        let mut specprefill = SpecPrefillSettings {
            enabled: all.specprefill_enabled.unwrap_or(specprefill.enabled),
            threshold: all.specprefill_threshold.unwrap_or(specprefill.threshold),
            keep_ratio: all.specprefill_keep_ratio.unwrap_or(specprefill.keep_ratio),
            scorer: all
                .specprefill_scorer
                .map_or(specprefill.scorer, Scorer::from),
            draft: None,
            reuse_sessions: all
                .specprefill_sessions
                .unwrap_or(specprefill.reuse_sessions),
            dense_recovery: all
                .specprefill_dense_recovery
                .unwrap_or(specprefill.dense_recovery),
        };
        let mtp = MtpSettings {
            enabled: all.mtp_enabled.unwrap_or(mtp.enabled),
            max_depth: all.mtp_max_depth.unwrap_or(mtp.max_depth),
            fixed_depth: all.mtp_fixed_depth.or(mtp.fixed_depth),
            mode: all.mtp_mode.map_or(mtp.mode, Into::into),
            draft_vocabulary: all.mtp_draft_vocabulary.unwrap_or(mtp.draft_vocabulary),
        };
        let find_other = |name: &str| match find(name) {
            Ok(draft) if draft.key == id => Err(format!("{id} cannot be its own draft model")),
            found => found,
        };
        let wanted = specprefill.enabled && specprefill.scorer == Scorer::Draft;
        let mut warning = None;
        match (&request.specprefill_draft_model, all.draft_model.as_deref()) {
            // A wrong name in the request is told even where the draft is not needed.
            (Some(name), _) if !name.is_empty() => {
                let draft = find_other(name).map_err(|reason| RequestError {
                    field: "specprefill_draft_model",
                    message: format!("The draft model \"{name}\" cannot be used: {reason}."),
                })?;
                specprefill.draft = wanted.then_some(draft);
            }
            (_, Some("")) => {}
            (_, Some(name)) if wanted => match find_other(name) {
                Ok(draft) => specprefill.draft = Some(draft),
                Err(reason) => {
                    warning = Some(format!(
                        "the draft model \"{name}\" that the settings name for {id} cannot be used: {reason}"
                    ));
                }
            },
            (_, None) if wanted => {
                let name = format!("{id}-draft");
                // A draft of another organisation may end in the same name: only the one beside the model is meant.
                specprefill.draft = find_other(&name)
                    .ok()
                    .filter(|draft| draft.key.eq_ignore_ascii_case(&name));
            }
            _ => {}
        }
        Ok(Resolved {
            specprefill,
            mtp,
            protect_last_messages: all.specprefill_protect_last_messages.unwrap_or(0),
            warning,
        })
    }
}

#[cfg(test)]
mod tests {
    use headstart_engine::{checkpoint::LoadOptions, request::MtpMode};
    use serde_json::{Value, json};

    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    fn request(value: Value) -> RequestSettings {
        serde_json::from_value(value).unwrap()
    }

    /// A library with these models.
    fn library<'a>(known: &'a [&'a str]) -> impl Fn(&str) -> Result<ModelSpec, String> + 'a {
        move |name| match known.iter().find(|id| **id == name) {
            Some(id) => Ok(ModelSpec {
                key: (*id).to_string(),
                path: id.into(),
                options: LoadOptions::default(),
            }),
            None => Err(format!("there is no model \"{name}\"")),
        }
    }

    fn draft(resolved: &Resolved) -> Option<&str> {
        resolved
            .specprefill
            .draft
            .as_ref()
            .map(|spec| spec.key.as_str())
    }

    #[test]
    fn nothing_set_is_off() {
        let resolved = Settings::default()
            .resolve("a/b", &RequestSettings::default(), library(&["a/b-draft"]))
            .unwrap();
        assert_eq!(resolved, Resolved::default());
        assert!(!resolved.specprefill.enabled && !resolved.mtp.enabled);
        assert_eq!(resolved.specprefill.threshold, 8192);
    }

    #[test]
    fn requests_win_over_models_and_these_over_defaults() {
        let settings = settings(
            r#"
            [defaults]
            specprefill_enabled = true
            specprefill_threshold = 4000
            specprefill_keep_ratio = 0.5
            specprefill_dense_recovery = false
            mtp_enabled = true
            mtp_max_depth = 2
            mtp_mode = "fast"
            [models."a/b"]
            specprefill_threshold = 3000
            specprefill_keep_ratio = 0.4
            specprefill_protect_last_messages = 2
            specprefill_sessions = false
            draft_model = "a/small"
            mtp_fixed_depth = 5
            mtp_draft_vocabulary = false
            "#,
        );
        let library = library(&["a/small", "a/tiny"]);
        let model = settings
            .resolve("a/b", &RequestSettings::default(), &library)
            .unwrap();
        assert!(model.specprefill.enabled && model.mtp.enabled);
        assert_eq!(model.specprefill.threshold, 3000);
        assert_eq!(model.specprefill.keep_ratio, 0.4);
        assert_eq!(draft(&model), Some("a/small"));
        assert!(!model.specprefill.reuse_sessions && !model.specprefill.dense_recovery);
        assert_eq!(model.protect_last_messages, 2);
        let mtp = model.mtp;
        assert_eq!((mtp.max_depth, mtp.fixed_depth), (2, Some(5)));
        assert_eq!((mtp.mode, mtp.draft_vocabulary), (MtpMode::Fast, false));

        let fields = json!({
            "specprefill_threshold": 0, "specprefill_keep_ratio": 0.1, "specprefill_draft_model": "a/tiny",
            "mtp": false, "mtp_depth": 8, "temperature": 0,
        });
        let own = settings.resolve("a/b", &request(fields), &library).unwrap();
        assert_eq!(own.specprefill.threshold, 0);
        assert_eq!(own.specprefill.keep_ratio, 0.1);
        assert_eq!(draft(&own), Some("a/tiny"));
        assert!(!own.mtp.enabled);
        assert_eq!(own.mtp.fixed_depth, Some(8));
        let off = settings
            .resolve("a/b", &request(json!({"specprefill": false})), &library)
            .unwrap();
        assert!(!off.specprefill.enabled && off.specprefill.draft.is_none());

        let other = settings
            .resolve("a/c", &RequestSettings::default(), &library)
            .unwrap();
        assert_eq!(other.specprefill.threshold, 4000);
        assert_eq!((draft(&other), &other.warning), (None, &None));
    }

    #[test]
    fn a_table_may_leave_out_the_first_parts_of_a_name() {
        let settings = settings(
            r#"
            [models."B"]
            mtp_max_depth = 1
            [models."a/b"]
            mtp_max_depth = 2
            "#,
        );
        let depth = |id: &str| settings.for_model(id).mtp_max_depth;
        assert_eq!(depth("a/b"), Some(2));
        assert_eq!(depth("x/A/B"), Some(2));
        assert_eq!(depth("c/b"), Some(1));
        assert_eq!(depth("b"), Some(1));
        assert_eq!(depth("a/bb"), None);
        assert_eq!(depth("ab"), None);
    }

    #[test]
    fn percent_are_taken_for_ratios() {
        let ratio = |value: Value| {
            Settings::default()
                .resolve("a", &request(value), library(&[]))
                .map(|resolved| resolved.specprefill.keep_ratio)
        };
        assert_eq!(ratio(json!({"specprefill_keep_pct": 0.3})), Ok(0.3));
        assert_eq!(ratio(json!({"specprefill_keep_pct": 30})), Ok(0.3));
        assert_eq!(ratio(json!({"specprefill_keep_pct": 1})), Ok(1.0));
        assert_eq!(ratio(json!({"specprefill_keep_pct": 100})), Ok(1.0));
        assert_eq!(
            ratio(json!({"specprefill_keep_pct": 0.3, "specprefill_keep_ratio": 0.6})),
            Ok(0.6)
        );
    }

    #[test]
    fn wrong_fields_are_named_with_their_range() {
        for (value, field, range) in [
            (
                json!({"specprefill_keep_ratio": 0.04}),
                "specprefill_keep_ratio",
                "from 0.05 to 1",
            ),
            (
                json!({"specprefill_keep_ratio": 1.5}),
                "specprefill_keep_ratio",
                "from 0.05 to 1",
            ),
            (
                json!({"specprefill_keep_ratio": -1}),
                "specprefill_keep_ratio",
                "from 0.05 to 1",
            ),
            (
                json!({"specprefill_keep_pct": 0}),
                "specprefill_keep_pct",
                "from 0.05 to 1",
            ),
            (
                json!({"specprefill_keep_pct": 101}),
                "specprefill_keep_pct",
                "from 0.05 to 1",
            ),
            (json!({"mtp_depth": 0}), "mtp_depth", "from 1 to 8"),
            (json!({"mtp_depth": 9}), "mtp_depth", "from 1 to 8"),
        ] {
            let error = Settings::default()
                .resolve("a", &request(value.clone()), library(&[]))
                .unwrap_err();
            assert_eq!(error.field, field, "{value}");
            assert!(error.message.contains(range), "{}", error.message);
        }
    }

    #[test]
    fn an_unknown_draft_is_the_requests_error_or_the_settings_warning() {
        let settings =
            settings("[defaults]\nspecprefill_enabled = true\ndraft_model = \"no/such\"\n");
        let resolved = settings
            .resolve("a", &RequestSettings::default(), library(&["a-draft"]))
            .unwrap();
        // The settings are wrong: nothing else is guessed.
        assert_eq!(draft(&resolved), None);
        assert!(resolved.specprefill.enabled);
        assert!(resolved.warning.unwrap().contains("no/such"));

        let named = request(json!({"specprefill_draft_model": "no/such"}));
        for enabled in [true, false] {
            let request = RequestSettings {
                specprefill: Some(enabled),
                ..named.clone()
            };
            let error = Settings::default()
                .resolve("a", &request, library(&[]))
                .unwrap_err();
            assert_eq!(error.field, "specprefill_draft_model");
            assert!(error.message.contains("no/such"), "{}", error.message);
        }
        // Not looked up where it would not be used.
        let off = request(json!({"specprefill": false}));
        let resolved = settings.resolve("a", &off, library(&[])).unwrap();
        assert_eq!(resolved.warning, None);
    }

    #[test]
    fn a_model_is_not_its_own_draft() {
        let request = request(json!({"specprefill": true, "specprefill_draft_model": "a"}));
        let error = Settings::default()
            .resolve("a", &request, library(&["a"]))
            .unwrap_err();
        assert!(error.message.contains("its own draft"), "{}", error.message);
    }

    #[test]
    fn a_draft_beside_the_model_is_found_by_its_name() {
        let on = request(json!({"specprefill": true}));
        let known = ["a/b", "a/b-draft", "other/c-draft"];
        let found = |id: &str, text: &str, request: &RequestSettings| {
            let resolved = settings(text)
                .resolve(id, request, library(&known))
                .unwrap();
            assert_eq!(resolved.warning, None);
            draft(&resolved).map(str::to_string)
        };
        assert_eq!(found("a/b", "", &on).as_deref(), Some("a/b-draft"));
        assert_eq!(found("a/c", "", &on), None);
        let none = "[models.\"a/b\"]\ndraft_model = \"\"";
        assert_eq!(found("a/b", none, &on), None);
        let own = request(json!({"specprefill": true, "specprefill_scorer": "self"}));
        assert_eq!(found("a/b", "", &own), None);

        // A library that knows a model by the last part of its name too.
        let loose = |_: &str| library(&known)("other/c-draft");
        let resolved = Settings::default().resolve("a/c", &on, loose).unwrap();
        assert_eq!(draft(&resolved), None);
    }
}
