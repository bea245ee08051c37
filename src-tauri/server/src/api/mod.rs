//! The HTTP API: OpenAI-compatible endpoints under `/v1`, `/health`, and the dashboard at `/`.

mod chat;
mod completions;
mod error;
mod extract;
mod guard;
mod health;
mod logprobs;
mod models;
mod params;
mod reply;
mod stream;
mod usage;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{get, post},
};

pub use error::ApiError;

use crate::state::AppState;

/// The largest request body: a million tokens of text are about 5 MB; images come base64-encoded.
const MAX_BODY_BYTES: usize = 64 << 20;

/// All routes with their guards.
pub fn router(state: AppState) -> Router {
    let v1 = Router::new()
        .route("/chat/completions", post(chat::chat_completions))
        .route("/completions", post(completions::completions))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::retrieve))
        .fallback(error::not_found)
        .method_not_allowed_fallback(error::method_not_allowed)
        .layer(middleware::from_fn_with_state(
            state.clone(),
            guard::require_key,
        ));
    let mut router = Router::new()
        .nest("/v1", v1)
        .route("/health", get(health::health))
        .with_state(state.clone())
        .merge(crate::ui::router())
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(
            state.clone(),
            guard::refuse_blind_posts,
        ));
    if let Some(cors) = guard::cors(&state) {
        router = router.layer(cors);
    }
    router.layer(middleware::from_fn_with_state(state, guard::check_host))
}
