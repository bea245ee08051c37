//! The settings file: what a user may set once instead of on every command line.

mod model;
mod resolve;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;

pub use model::{ModelSettings, MtpModeChoice, OutOfRange, ScorerChoice};
pub use resolve::{RequestError, RequestSettings, Resolved};

/// What is sent on an event stream while nothing is generated, so that clients and proxies do not give up during a long prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum KeepAlive {
    /// A comment line (`: prefill 1024/8192`), which the standard says clients must ignore.
    #[default]
    Comment,
    /// A data chunk with an empty delta, for clients that stumble over comments.
    Chunk,
    /// Nothing.
    Off,
}

/// The content of `settings.toml`; every key is optional.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 takes any free one.
    pub port: u16,
    /// Key that `/v1` asks for; needed to listen on another address than loopback.
    pub api_key: Option<String>,
    /// Origins of web pages that may call the API, for example `http://localhost:3000`.
    pub allowed_origins: Vec<String>,
    /// Further host names under which clients reach this server.
    pub allowed_hosts: Vec<String>,
    /// Folders with models, besides the app's own.
    pub model_dirs: Vec<PathBuf>,
    /// Where to compute: auto, cpu, metal, cuda.
    pub device: String,
    /// What is sent while a prompt is prefilled.
    pub sse_keepalive: KeepAlive,
    /// Seconds between two signs of life.
    pub sse_keepalive_seconds: u64,
    /// Requests answered at once.
    pub max_running: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// Models held in memory at once.
    pub max_loaded_models: usize,
    /// Memory for prompts that were read before, in MiB; 0 keeps none.
    pub prefix_cache_mib: usize,
    /// What holds for every model that has no setting of its own.
    pub defaults: ModelSettings,
    /// Settings of single models, by name.
    pub models: BTreeMap<String, ModelSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8457,
            api_key: None,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            model_dirs: Vec::new(),
            device: "auto".into(),
            sse_keepalive: KeepAlive::default(),
            sse_keepalive_seconds: 5,
            max_running: 8,
            max_waiting: 64,
            max_loaded_models: 2,
            prefix_cache_mib: 1024,
            defaults: ModelSettings::default(),
            models: BTreeMap::new(),
        }
    }
}

/// Why the settings file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A line is not TOML, or a value has the wrong type.
    #[error("the settings file {} has a mistake: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The place and what is wrong there.
        message: String,
    },
}

impl Settings {
    /// Reads `path`; a file that is not there gives the defaults.
    ///
    /// # Errors
    /// When the file cannot be read or holds a mistake, with the place.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => {
                return Err(SettingsError::Io {
                    path: path.to_path_buf(),
                    source,
                });
            }
        };
        let invalid = |message: String| SettingsError::Invalid {
            path: path.to_path_buf(),
            message,
        };
        let settings: Self = toml::from_str(&text).map_err(|e| invalid(e.to_string()))?;
        settings.check().map_err(|e| invalid(e.to_string()))?;
        Ok(settings)
    }

    /// Checks the ranges of all values.
    ///
    /// # Errors
    /// The first value outside its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        self.defaults.check("defaults")?;
        self.models
            .iter()
            .try_for_each(|(name, own)| own.check(&format!("models.\"{name}\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_gives_defaults_and_a_wrong_one_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        assert_eq!(Settings::read(&path).unwrap(), Settings::default());
        std::fs::write(&path, "port = 9000\nsse_keepalive = \"chunk\"\n").unwrap();
        let settings = Settings::read(&path).unwrap();
        assert_eq!(
            (settings.port, settings.sse_keepalive),
            (9000, KeepAlive::Chunk)
        );
        std::fs::write(&path, "host = \"127.0.0.1\"\nport = \"high\"\n").unwrap();
        let error = Settings::read(&path).unwrap_err().to_string();
        assert!(
            error.contains("line 2") && error.contains("port"),
            "{error}"
        );
    }

    #[test]
    fn values_out_of_range_are_named_with_their_key_and_range() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Settings::read(&path).map_err(|error| error.to_string())
        };
        for (text, parts) in [
            (
                "[defaults]\nspecprefill_keep_ratio = 0.01",
                ["defaults.specprefill_keep_ratio", "0.01", "from 0.05 to 1"],
            ),
            (
                "[models.\"a/b\"]\nmtp_max_depth = 9",
                ["models.\"a/b\".mtp_max_depth", "9", "from 1 to 8"],
            ),
            (
                "[models.\"a/b\"]\nmtp_fixed_depth = 0",
                ["models.\"a/b\".mtp_fixed_depth", "0", "from 1 to 8"],
            ),
            (
                "[models.\"a/b\"]\nspecprefill_threshold = -1",
                ["line 2", "specprefill_threshold", "-1"],
            ),
            (
                "[defaults]\nspecprefill_scorer = \"own\"",
                ["line 2", "draft", "self"],
            ),
            (
                "[defaults]\nmtp_mode = \"slow\"",
                ["line 2", "exact", "fast"],
            ),
            // A typing error must not look like a setting.
            (
                "[defaults]\nspecprefil_enabled = true",
                ["line 2", "specprefil_enabled", "specprefill_enabled"],
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let settings = read(
            "prefix_cache_mib = 0\n[defaults]\nspecprefill_scorer = \"self\"\n\
             [models.\"a/b\"]\nspecprefill_keep_ratio = 1\nmtp_fixed_depth = 8\n",
        )
        .unwrap();
        assert_eq!(settings.prefix_cache_mib, 0);
        assert_eq!(Settings::default().prefix_cache_mib, 1024);
        let model = settings.for_model("a/b");
        assert_eq!(model.specprefill_scorer, Some(ScorerChoice::Own));
        assert_eq!(model.specprefill_keep_ratio, Some(1.0));
        assert_eq!(model.mtp_fixed_depth, Some(8));
    }
}
