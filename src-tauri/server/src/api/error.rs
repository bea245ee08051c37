//! Errors as OpenAI's clients expect them.

use axum::{
    Json,
    extract::OriginalUri,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use headstart_engine::error::EngineError;
use serde_json::{Value, json};

use crate::{library::LookupError, prompt::PromptError};

/// An error with its HTTP status, in OpenAI's shape: `{"error": {message, type, param, code}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<u64>,
}

/// The longest message: one that quotes a request's own text must not send all of it back.
const MAX_MESSAGE_CHARS: usize = 1000;

/// The longest name of a field.
const MAX_PARAM_CHARS: usize = 200;

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: shortened(&message.into(), MAX_MESSAGE_CHARS),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// 400: the request is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 about one field.
    pub fn bad_field(param: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param)
    }

    /// 401: the key is missing or wrong.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "This server asks for its API key: send it as \"Authorization: Bearer KEY\".",
        )
        .with_code("invalid_api_key")
    }

    /// 403: not from here.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 413: the body is too large.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            message,
        )
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// Names the field.
    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(shortened(param, MAX_PARAM_CHARS));
        self
    }

    /// Sets the machine-readable code.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The body: also what an event stream carries when an answer fails in its middle.
    pub fn body(&self) -> Value {
        json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        })
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::ContextOverflow { .. } => {
                Self::bad_request(message).with_code("context_length_exceeded")
            }
            EngineError::InvalidRequest(_) => Self::bad_request(message),
            EngineError::Busy {
                retry_after_seconds,
                ..
            } => Self {
                retry_after: Some(retry_after_seconds),
                code: Some("server_busy"),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            },
            EngineError::NotLoaded | EngineError::Stopped => Self {
                retry_after: Some(1),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            },
            EngineError::Load(_) | EngineError::Compute(_) | EngineError::Cancelled => {
                Self::internal(message)
            }
        }
    }
}

impl From<LookupError> for ApiError {
    fn from(error: LookupError) -> Self {
        match error {
            LookupError::Unknown { known, .. } if known.is_empty() => Self::not_found(
                "There is no model yet. Put a .gguf file or a model folder into one of the model folders (see `headstart models`).",
            ),
            LookupError::Unknown { name, known } => {
                let name: String = name.chars().take(100).collect();
                Self::not_found(format!("There is no model \"{name}\". Available: {}.", known.join(", ")))
            }
            LookupError::Ambiguous(ids) => Self::not_found(format!(
                "Several models have this name; use one of: {}.",
                ids.join(", ")
            )),
            LookupError::Broken { id, reason } => Self::not_found(format!("The model {id} cannot be used: {reason}.")),
        }
        .with_param("model")
        .with_code("model_not_found")
    }
}

impl From<PromptError> for ApiError {
    fn from(error: PromptError) -> Self {
        if error.is_client_error() {
            Self::bad_field("messages", error.to_string())
        } else {
            Self::internal(error.to_string())
        }
    }
}

/// 404 for unknown API paths.
pub(super) async fn not_found(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::not_found(format!(
        "There is no {method} {} here. The API is under /v1: chat/completions, completions, models.",
        uri.path()
    ))
}

/// 405 for known API paths.
pub(super) async fn method_not_allowed(method: Method, OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid_request_error",
        format!("{} does not take {method} requests.", uri.path()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_not_sent_back_whole() {
        let error = ApiError::bad_field(&"p".repeat(5000), "é".repeat(5000));
        assert_eq!(error.message().chars().count(), MAX_MESSAGE_CHARS + 1);
        let param = error.body()["error"]["param"].as_str().map(str::len);
        assert!(param.is_some_and(|length| length < 2 * MAX_PARAM_CHARS));
        assert_eq!(ApiError::not_found("short").message(), "short");
    }
}
