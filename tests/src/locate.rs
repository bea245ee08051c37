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
