//! Where test data lies.

use std::path::{Path, PathBuf};

/// Our own fixtures, part of the repository.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The starter model: `HEADSTART_STARTER_GGUF`, else the app's own model folder. `None`, with a note, when it is not there.
pub fn starter() -> Option<PathBuf> {
    let path = std::env::var_os("HEADSTART_STARTER_GGUF")
        .map(PathBuf::from)
        .or_else(|| {
            headstart_server::paths::models_dir()
                .map(|dir| dir.join("HuggingFaceTB/SmolLM2-135M-Instruct.Q4_1.gguf"))
        })?;
    if path.is_file() {
        Some(path)
    } else {
        println!(
            "SKIPPED: no starter model at {} (make starter)",
            path.display()
        );
        None
    }
}

/// A model that is part of the repository.
pub fn bundled(name: &str) -> PathBuf {
    std::env::var_os("HEADSTART_BUNDLED_MODELS")
        .map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/headstart"),
            PathBuf::from,
        )
        .join(name)
}

/// A file or folder of the data that lies beside the repository (`HEADSTART_SHARED`, else `../shared`). `None`, with a note, when it is
/// not there: it is no part of a user's clone.
pub fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("HEADSTART_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let path = root.join(name);
    if path.exists() {
        Some(path)
    } else {
        println!("SKIPPED: no {}", path.display());
        None
    }
}
