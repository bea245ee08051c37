//! `GET /health`.

use axum::{Json, extract::State, http::HeaderMap};
use serde_json::{Value, json};

use super::guard::key_accepted;
use crate::state::AppState;

/// Says that the server answers, what the engine does and, to those who hold the key, where models are looked for.
pub(super) async fn health(State(state): State<AppState>, headers: HeaderMap) -> Json<Value> {
    let status = state.engine().status();
    let mut body = json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "device": state.device_name(),
        "running": status.running,
        "waiting": status.waiting,
    });
    if key_accepted(&state, &headers) {
        let folders: Vec<String> = state
            .library()
            .folders()
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        body["model_dirs"] = json!(folders);
    }
    Json(body)
}
