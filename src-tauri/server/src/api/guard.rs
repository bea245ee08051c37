//! Who may talk to the server: host names (against DNS rebinding), the API key, and other web pages.

use std::net::{IpAddr, Ipv6Addr};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq;
use tower_http::cors::{Any, CorsLayer};

use super::error::ApiError;
use crate::state::AppState;

/// Refuses requests whose `Host` is not this server: a web page that rebinds its own name to 127.0.0.1 still sends its own name.
pub(super) async fn check_host(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let host = request
        .uri()
        .authority()
        .map(|authority| authority.as_str().to_string())
        .or_else(|| {
            let value = request.headers().get(header::HOST)?;
            Some(value.to_str().ok()?.to_string())
        });
    match host {
        Some(host)
            if host_allowed(
                &host,
                state.settings().host,
                &state.settings().allowed_hosts,
            ) =>
        {
            next.run(request).await
        }
        Some(host) => {
            let host: String = host.chars().take(100).collect();
            ApiError::forbidden(format!(
                "This server does not answer to the name \"{host}\". Use 127.0.0.1 or localhost, or add the name to allowed_hosts in the settings."
            ))
            .into_response()
        }
        None => ApiError::forbidden("The request names no host.").into_response(),
    }
}

/// True when `host` (with or without a port) is a loopback name, the bound address, or an allowed name. On all interfaces, any literal
/// address is this machine's own: only names can be rebound.
fn host_allowed(host: &str, bound: IpAddr, allowed: &[String]) -> bool {
    let name = without_port(host)
        .trim_end_matches('.')
        .to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") {
        return true;
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        return address.is_loopback() || address == bound || bound.is_unspecified();
    }
    allowed
        .iter()
        .any(|allowed| allowed.eq_ignore_ascii_case(&name))
}

/// `localhost:80` -> `localhost`, `[::1]:80` -> `::1`, `::1` -> `::1`.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        return host;
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Asks for the key where one is set.
pub(super) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    if key_accepted(&state, request.headers()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

/// True when no key is set or the request carries it.
pub(super) fn key_accepted(state: &AppState, headers: &HeaderMap) -> bool {
    let Some(key) = &state.settings().api_key else {
        return true;
    };
    let sent = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes)
        .and_then(|value| {
            let (scheme, token) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
        })
        .or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes));
    // The comparison takes the same time wherever the keys differ.
    sent.is_some_and(|sent| sent.trim_ascii().ct_eq(key.as_bytes()).into())
}

/// Refuses posts that a foreign web page can send without asking first: those of a simple content type carry an `Origin` but cause no
/// preflight. The page could not read the answer, but it could keep the engine busy.
pub(super) async fn refuse_blind_posts(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let foreign = request.method() == Method::POST
        && headers
            .get(header::ORIGIN)
            .is_some_and(|origin| !own_origin(origin, headers) && !state.origin_allowed(origin));
    let json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            value
                .trim_start()
                .to_ascii_lowercase()
                .starts_with("application/json")
        });
    if foreign && !json {
        return ApiError::forbidden(
            "A web page of another origin may not post here. Add its origin to allowed_origins in the settings if it should.",
        )
        .into_response();
    }
    next.run(request).await
}

fn own_origin(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let origin = origin.as_bytes();
    let origin = origin
        .strip_prefix(b"http://".as_slice())
        .or_else(|| origin.strip_prefix(b"https://".as_slice()));
    origin.is_some() && origin == host
}

/// Cross-origin headers, only for origins that the settings allow.
pub(super) fn cors(state: &AppState) -> Option<CorsLayer> {
    let origins: Vec<HeaderValue> = state
        .settings()
        .allowed_origins
        .iter()
        .filter_map(|origin| HeaderValue::from_str(origin.trim_end_matches('/')).ok())
        .collect();
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE]);
    Some(if origins.iter().any(|origin| origin == "*") {
        layer.allow_origin(Any)
    } else {
        layer.allow_origin(origins)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        for host in [
            "localhost",
            "LOCALHOST:8457",
            "127.0.0.1:1",
            "[::1]:8457",
            "::1",
            "app.localhost:3",
            "localhost.",
            "127.9.9.9",
        ] {
            assert!(host_allowed(host, loopback, &[]), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.4:80",
            "",
            "127.0.0.1.evil.example",
            "[fe80::1]",
            "localhost@evil",
        ] {
            assert!(!host_allowed(host, loopback, &[]), "{host}");
        }
        let any = IpAddr::from([0, 0, 0, 0]);
        assert!(host_allowed("10.0.0.4:80", any, &[]));
        assert!(!host_allowed("mac.lan", any, &[]));
        assert!(host_allowed("Mac.lan:80", any, &["mac.lan".into()]));
        let lan = IpAddr::from([10, 0, 0, 4]);
        assert!(host_allowed("10.0.0.4:80", lan, &[]));
        assert!(!host_allowed("10.0.0.5:80", lan, &[]));
    }
}
