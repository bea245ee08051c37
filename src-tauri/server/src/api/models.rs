//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::time::UNIX_EPOCH;

use axum::{
    Json,
    extract::{Path, State},
};
use headstart_engine::{checkpoint::CheckpointFormat, scheduler::ModelState};
use serde_json::{Value, json};

use super::error::ApiError;
use crate::{library::ModelEntry, state::AppState};

/// All usable models; those that cannot be used are listed apart, under `unavailable`, with their reasons.
pub(super) async fn list(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let entries = entries(&state).await?;
    let data: Vec<Value> = entries
        .iter()
        .filter_map(|entry| describe(&state, entry))
        .collect();
    let unavailable: Vec<Value> = entries
        .iter()
        .filter_map(|entry| {
            let reason = entry.status.as_ref().err()?;
            Some(json!({"id": entry.id, "reason": reason}))
        })
        .collect();
    Ok(Json(
        json!({"object": "list", "data": data, "unavailable": unavailable}),
    ))
}

/// One model.
pub(super) async fn retrieve(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let entry = state.find_model(&id).await?;
    describe(&state, &entry)
        .map(Json)
        .ok_or_else(|| ApiError::internal("The model vanished while it was described."))
}

async fn entries(state: &AppState) -> Result<Vec<ModelEntry>, ApiError> {
    let library = state.library().clone();
    tokio::task::spawn_blocking(move || library.entries())
        .await
        .map_err(|_| ApiError::internal("The model folders could not be read."))
}

fn describe(state: &AppState, entry: &ModelEntry) -> Option<Value> {
    let summary = entry.status.as_ref().ok()?;
    let created = entry
        .modified
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let model_state = match state.engine().status().models.get(&entry.id) {
        Some(ModelState::Loaded) => "loaded",
        Some(ModelState::Loading) => "loading",
        None => "not_loaded",
    };
    Some(json!({
        "id": entry.id,
        "object": "model",
        "created": created,
        "owned_by": entry.id.split_once('/').map_or("local", |(owner, _)| owner),
        "state": model_state,
        "architecture": summary.architecture,
        "format": match summary.format {
            CheckpointFormat::Gguf => "gguf",
            CheckpointFormat::Safetensors => "safetensors",
        },
        "quantization": summary.quantization,
        "parameters": summary.parameters,
        "size_bytes": summary.bytes,
        "context_length": summary.context_length,
    }))
}
