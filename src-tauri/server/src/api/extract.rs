//! Request bodies: JSON whose mistakes are named with their place.

use std::time::Instant;

use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
};
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// A request body that is to be JSON, and when its request arrived. Any content type is taken: many scripts send none.
#[derive(Debug)]
pub(super) struct RawBody {
    bytes: Bytes,
    /// The zero of all the request's times.
    pub(super) arrived: Instant,
}

impl RawBody {
    /// Parses the body as `T`; fields that `T` does not know are ignored.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        parse(&self.bytes)
    }
}

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let arrived = Instant::now();
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(|rejection| {
                if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
                    ApiError::too_large(format!(
                        "The request body is larger than {} MiB.",
                        super::MAX_BODY_BYTES >> 20
                    ))
                } else {
                    ApiError::bad_request(format!(
                        "The request body could not be read: {}.",
                        rejection.body_text()
                    ))
                }
            })?;
        Ok(Self { bytes, arrived })
    }
}

/// Parses JSON; a mistake in the syntax is named by line and column, a wrong value by its path.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request(
            "The request body is empty; expected a JSON object.",
        ));
    }
    // A list would be taken for the fields in their order.
    if bytes
        .trim_ascii_start()
        .first()
        .is_some_and(|first| *first == b'[')
    {
        return Err(ApiError::bad_request(
            "The request body must be a JSON object, not a list.",
        ));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        let text = inner.to_string();
        if inner.is_data() {
            let what = text
                .rsplit_once(" at line ")
                .map_or(text.as_str(), |(what, _)| what);
            let what = in_json_words(what);
            if path == "." {
                let error = ApiError::bad_request(format!("The request is wrong: {what}."));
                match what
                    .strip_prefix("missing field `")
                    .and_then(|rest| rest.strip_suffix('`'))
                {
                    Some(field) => error.with_param(field),
                    None => error,
                }
            } else {
                ApiError::bad_field(&path, format!("The field \"{path}\" is wrong: {what}."))
            }
        } else {
            ApiError::bad_request(format!("The request body is not valid JSON: {text}."))
        }
    })?;
    deserializer.end().map_err(|error| {
        ApiError::bad_request(format!("The request body is not valid JSON: {error}."))
    })?;
    Ok(value)
}

/// The deserializer names what it expected by its Rust type; clients know JSON's.
fn in_json_words(what: &str) -> String {
    let Some((found, expected)) = what.rsplit_once(", expected ") else {
        return what.to_string();
    };
    let expected = match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of 0 or more",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    let found = match found {
        "invalid type: map" => "invalid type: object",
        "invalid type: sequence" => "invalid type: list",
        other => other,
    };
    format!("{found}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Body {
        model: String,
        options: Option<Options>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Options {
        top_k: u32,
    }

    fn message(text: &str) -> String {
        parse::<Body>(text.as_bytes())
            .unwrap_err()
            .message()
            .to_string()
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        assert!(message("").contains("empty"));
        assert!(message("{\"model\": \"a\",\n  oops}").contains("line 2"));
        assert!(message("{\"model\": 3}").contains("\"model\""));
        assert!(
            message("{\"model\": \"a\", \"options\": {\"top_k\": \"x\"}}")
                .contains("options.top_k")
        );
        assert!(message("{}").contains("missing field `model`"));
        let missing = parse::<Body>(b"{}").unwrap_err();
        assert_eq!(missing.body()["error"]["param"], "model");
        assert!(message("{\"model\": \"a\"} trailing").contains("trailing"));
        assert!(message(" [1]").contains("must be a JSON object"));
        assert!(message("3").contains("wrong"));
        for (options, expected) in [
            (
                "{\"top_k\": true}",
                "boolean `true`, expected an integer of 0 or more",
            ),
            (
                "{\"top_k\": -1}",
                "integer `-1`, expected an integer of 0 or more",
            ),
            (
                "{\"top_k\": {}}",
                "object, expected an integer of 0 or more",
            ),
            ("7", "integer `7`, expected an object"),
        ] {
            let message = message(&format!("{{\"model\": \"a\", \"options\": {options}}}"));
            assert!(message.contains(expected), "{message}");
        }
        assert!(message("\u{feff}{}").contains("JSON"));
        let deep = format!("{{\"x\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        // Unknown fields are skipped without recursion.
        assert!(
            message(&deep).contains("missing field"),
            "{}",
            message(&deep)
        );
        assert!(parse::<Body>(b"{\"model\": \"a\", \"unknown\": [1, 2]}").is_ok());
    }
}
