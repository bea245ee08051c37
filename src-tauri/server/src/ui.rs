//! The dashboard: the files that `make ui` builds into `ui/dist`, served from inside the binary.
//!
//! A release build embeds the files; a debug build reads them from the source tree at run time, so that a rebuilt
//! dashboard shows after a reload. Where the dashboard was not built, a small page says so and how to build it.

use std::borrow::Cow;

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};

/// Everything the page needs comes from its own origin, and no other page may frame it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; img-src 'self' data:; object-src 'none'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// First path segments that belong to the HTTP API: a path under them is never answered with the page.
const API_SEGMENTS: [&str; 4] = ["v1", "api", "health", "metrics"];

const NOT_BUILT: &str = r#"<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Headstart</title></head>
<body>
<h1>Headstart is running</h1>
<p>The dashboard was not built into this binary. Build it with <code>make ui</code>, then build and start the server again.</p>
<p>The API works without it: the models are listed at <a href="/v1/models">/v1/models</a>.</p>
</body>
</html>
"#;

#[derive(rust_embed::Embed)]
#[folder = "../../ui/dist"]
#[allow_missing = true]
struct Dist;

/// One file of the dashboard.
struct Asset {
    body: Cow<'static, [u8]>,
    sha256: [u8; 32],
}

/// Finds a file by its path inside `ui/dist`, without a leading slash.
type Lookup = fn(&str) -> Option<Asset>;

fn embedded(path: &str) -> Option<Asset> {
    Dist::get(path).map(|file| Asset {
        body: file.data,
        sha256: file.metadata.sha256_hash(),
    })
}

/// Routes of the dashboard, as a fallback to merge with the API's routes.
///
/// - `/` is the page. A browser that navigates to an unknown path without a file extension gets the page too, since the
///   page does its own routing.
/// - Files under `assets/` carry a hash in their names and may be cached for ever; all others are revalidated by ETag.
/// - What is left is a 404 with an OpenAI error object: unknown API paths, and any client that does not ask for HTML,
///   which has most likely forgotten the `/v1` of the base URL.
pub(crate) fn router() -> Router {
    router_over(embedded)
}

fn router_over(lookup: Lookup) -> Router {
    Router::new().fallback(
        move |method: Method, uri: Uri, headers: HeaderMap| async move {
            serve(lookup, &method, &uri, &headers)
        },
    )
}

fn serve(lookup: Lookup, method: &Method, uri: &Uri, headers: &HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    let first_segment = path.split('/').next().unwrap_or_default();
    if API_SEGMENTS.contains(&first_segment) || (method != Method::GET && method != Method::HEAD) {
        return not_found(method, uri);
    }
    if !path.is_empty()
        && path != "index.html"
        && let Some(asset) = lookup(path)
    {
        let cache = if path.starts_with("assets/") {
            "public, max-age=31536000, immutable"
        } else {
            "no-cache"
        };
        return asset_response(asset, path, cache, headers);
    }
    let last_segment = path.rsplit('/').next().unwrap_or_default();
    let navigation = !last_segment.contains('.') && accepts_html(headers);
    if path.is_empty() || path == "index.html" || navigation {
        return match lookup("index.html") {
            Some(asset) => asset_response(asset, "index.html", "no-cache", headers),
            None => with_security_headers(
                [
                    (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                    (header::CACHE_CONTROL, "no-store"),
                ],
                NOT_BUILT,
            ),
        };
    }
    not_found(method, uri)
}

/// Browsers name `text/html` when they navigate; API clients and `fetch` do not.
fn accepts_html(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|accept| accept.contains("text/html"))
    })
}

fn asset_response(asset: Asset, path: &str, cache: &'static str, headers: &HeaderMap) -> Response {
    let etag = etag(&asset.sha256);
    if matches_etag(headers, &etag) {
        return with_security_headers(
            [
                (header::ETAG, etag.as_str()),
                (header::CACHE_CONTROL, cache),
            ],
            StatusCode::NOT_MODIFIED,
        );
    }
    let content_type = content_type(path);
    with_security_headers(
        [
            (header::CONTENT_TYPE, content_type.as_str()),
            (header::ETAG, etag.as_str()),
            (header::CACHE_CONTROL, cache),
        ],
        Body::from(asset.body),
    )
}

fn with_security_headers<const N: usize>(
    headers: [(HeaderName, &str); N],
    response: impl IntoResponse,
) -> Response {
    let mut response = response.into_response();
    let map = response.headers_mut();
    for (name, value) in headers {
        // None of ours can be an invalid header value.
        if let Ok(value) = HeaderValue::from_str(value) {
            map.insert(name, value);
        }
    }
    map.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(CONTENT_SECURITY_POLICY),
    );
    map.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    map.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    response
}

/// Strong entity tag: the first 16 bytes of the file's SHA-256 in hexadecimal.
fn etag(sha256: &[u8; 32]) -> String {
    let mut tag = String::with_capacity(34);
    tag.push('"');
    for byte in &sha256[..16] {
        tag.push_str(&format!("{byte:02x}"));
    }
    tag.push('"');
    tag
}

/// `If-None-Match` against our tag by weak comparison (RFC 9110, section 13.1.2). Our tags hold no comma.
fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| {
            value.split(',').map(str::trim).any(|candidate| {
                candidate == "*" || candidate.strip_prefix("W/").unwrap_or(candidate) == etag
            })
        })
}

fn content_type(path: &str) -> String {
    let mime = mime_guess::from_path(path).first_or_octet_stream();
    match mime.type_() {
        mime_guess::mime::TEXT => format!("{mime}; charset=utf-8"),
        _ => mime.to_string(),
    }
}

fn not_found(method: &Method, uri: &Uri) -> Response {
    let path = uri.path();
    let hint = if path.starts_with("/v1/") || path.starts_with("/api/") {
        ""
    } else {
        " The API's base URL ends in /v1."
    };
    let body = serde_json::json!({
        "error": {
            "message": format!("There is nothing at {method} {path}.{hint}"),
            "type": "invalid_request_error",
            "param": null,
            "code": "not_found",
        }
    });
    with_security_headers(
        [
            (header::CONTENT_TYPE, "application/json"),
            (header::CACHE_CONTROL, "no-store"),
        ],
        (StatusCode::NOT_FOUND, body.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::to_bytes, http::Request};
    use tower::ServiceExt;

    const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";

    fn built(path: &str) -> Option<Asset> {
        let body: &'static [u8] = match path {
            "index.html" => b"<!doctype html><p>page</p>",
            "assets/app-0a1b.js" => b"export {}",
            "icon.svg" => b"<svg/>",
            _ => return None,
        };
        Some(Asset {
            body: body.into(),
            sha256: [body.len() as u8; 32],
        })
    }

    fn not_built(_: &str) -> Option<Asset> {
        None
    }

    struct Answer {
        status: StatusCode,
        headers: HeaderMap,
        body: String,
    }

    impl Answer {
        fn header(&self, name: HeaderName) -> &str {
            self.headers
                .get(name)
                .map_or("", |value| value.to_str().unwrap())
        }
    }

    async fn ask(
        router: Router,
        method: &str,
        path: &str,
        headers: &[(HeaderName, &str)],
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let response = router
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 24).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    async fn get(path: &str, headers: &[(HeaderName, &str)]) -> Answer {
        ask(router_over(built), "GET", path, headers).await
    }

    #[tokio::test]
    async fn root_is_the_page_with_its_headers() {
        let page = get("/", &[]).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.body.contains("<p>page</p>"));
        assert_eq!(
            page.header(header::CONTENT_TYPE),
            "text/html; charset=utf-8"
        );
        assert_eq!(page.header(header::CACHE_CONTROL), "no-cache");
        assert!(
            page.header(header::CONTENT_SECURITY_POLICY)
                .starts_with("default-src 'self'")
        );
        assert_eq!(page.header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert_eq!(get("/index.html", &[]).await.body, page.body);
    }

    #[tokio::test]
    async fn hashed_assets_are_immutable_and_others_are_not() {
        let script = get("/assets/app-0a1b.js", &[]).await;
        assert_eq!(script.status, StatusCode::OK);
        assert_eq!(
            script.header(header::CONTENT_TYPE),
            "text/javascript; charset=utf-8"
        );
        assert_eq!(
            script.header(header::CACHE_CONTROL),
            "public, max-age=31536000, immutable"
        );
        let icon = get("/icon.svg", &[]).await;
        assert_eq!(icon.header(header::CONTENT_TYPE), "image/svg+xml");
        assert_eq!(icon.header(header::CACHE_CONTROL), "no-cache");
    }

    #[tokio::test]
    async fn a_known_tag_is_answered_with_304() {
        let first = get("/icon.svg", &[]).await;
        let tag = first.header(header::ETAG).to_owned();
        assert_eq!(tag, format!("\"{}\"", "06".repeat(16)));
        for known in [
            tag.clone(),
            format!("W/{tag}"),
            format!("\"other\", {tag}"),
            "*".into(),
        ] {
            let again = get("/icon.svg", &[(header::IF_NONE_MATCH, &known)]).await;
            assert_eq!(again.status, StatusCode::NOT_MODIFIED, "{known}");
            assert_eq!(again.body, "");
            assert_eq!(again.header(header::ETAG), tag);
        }
        let changed = get("/icon.svg", &[(header::IF_NONE_MATCH, "\"other\"")]).await;
        assert_eq!(changed.status, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_browser_gets_the_page_at_unknown_paths() {
        for path in ["/history", "/models/org/name"] {
            let page = get(path, &[(header::ACCEPT, HTML)]).await;
            assert_eq!(page.status, StatusCode::OK, "{path}");
            assert!(page.body.contains("<p>page</p>"), "{path}");
        }
        for path in ["/missing.js", "/assets/gone.css", "/../../etc/passwd.txt"] {
            assert_eq!(
                get(path, &[(header::ACCEPT, HTML)]).await.status,
                StatusCode::NOT_FOUND,
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn api_clients_get_an_error_object_and_never_the_page() {
        for (method, path, accept) in [
            ("GET", "/v1/nothing", HTML),
            ("GET", "/api/nothing", HTML),
            ("GET", "/health/nothing", HTML),
            ("GET", "/models", "application/json"),
            ("GET", "/models", "*/*"),
            ("POST", "/chat/completions", HTML),
            ("POST", "/", HTML),
        ] {
            let answer = ask(
                router_over(built),
                method,
                path,
                &[(header::ACCEPT, accept)],
            )
            .await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{method} {path}");
            assert_eq!(answer.header(header::CONTENT_TYPE), "application/json");
            let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            assert!(
                body["error"]["message"].as_str().unwrap().contains(path),
                "{body}"
            );
        }
        let hint = get("/models", &[]).await.body;
        assert!(hint.contains("base URL ends in /v1"), "{hint}");
    }

    #[tokio::test]
    async fn merged_with_an_api_the_api_wins() {
        let api = Router::new().route("/health", axum::routing::get(|| async { "api" }));
        let merged = api.merge(router_over(built));
        assert_eq!(ask(merged.clone(), "GET", "/health", &[]).await.body, "api");
        assert!(
            ask(merged, "GET", "/", &[])
                .await
                .body
                .contains("<p>page</p>")
        );
    }

    #[tokio::test]
    async fn an_unbuilt_dashboard_says_how_to_build_it() {
        let page = ask(router_over(not_built), "GET", "/", &[]).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(page.body.contains("make ui"));
        assert_eq!(
            page.header(header::CONTENT_TYPE),
            "text/html; charset=utf-8"
        );
        assert_eq!(page.header(header::CACHE_CONTROL), "no-store");
    }

    #[tokio::test]
    async fn the_real_files_hang_together() {
        // With a dashboard: every file that the page names is served. Without one: the page that says so.
        let outside = ask(router(), "GET", "/../package.json", &[]).await;
        assert_eq!(outside.status, StatusCode::NOT_FOUND);
        let page = ask(router(), "GET", "/", &[]).await;
        assert_eq!(page.status, StatusCode::OK);
        if page.body.contains("make ui") {
            println!("skipped in part: ui/dist is not built");
            return;
        }
        let named: Vec<&str> = page
            .body
            .split('"')
            .filter(|text| text.starts_with("/assets/") || *text == "/icon.svg")
            .collect();
        assert!(
            named.len() >= 3,
            "script, style and icon expected in {}",
            page.body
        );
        for path in named {
            let file = ask(router(), "GET", path, &[]).await;
            assert_eq!(file.status, StatusCode::OK, "{path}");
            assert!(!file.body.is_empty(), "{path}");
        }
    }
}
