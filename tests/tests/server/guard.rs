//! Who may talk to the server.

use headstart_tests::{
    models::TINY,
    server::{Home, Setup},
};

use super::{CHAT, Lab, ask};

fn status_of(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn foreign_host_names_are_refused() {
    let lab = Lab::shared();
    let client = lab.client();
    let port = client.address().port();
    let get = |path: &str, host: &str| {
        let host = if host.is_empty() {
            String::new()
        } else {
            format!("host: {host}\r\n")
        };
        client.raw(format!("GET {path} HTTP/1.1\r\n{host}connection: close\r\n\r\n").as_bytes())
    };
    for path in ["/health", "/v1/models", "/"] {
        for host in [
            "localhost",
            "127.0.0.1",
            "[::1]",
            "LocalHost",
            "app.localhost",
        ] {
            for host in [host.to_string(), format!("{host}:{port}")] {
                assert_eq!(status_of(&get(path, &host)), "200", "{path} {host}");
            }
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.1.2.3",
            "127.0.0.1.evil.example:80",
        ] {
            let answer = get(path, host);
            assert_eq!(status_of(&answer), "403", "{path} {host}");
            assert!(answer.contains(host.split(':').next().unwrap()), "{answer}");
        }
    }
    // HTTP/1.1 demands a host.
    assert!(matches!(status_of(&get("/health", "")), "400" | "403"));
    let absolute =
        b"GET http://evil.example/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(status_of(&client.raw(absolute)), "403");
}

#[test]
fn allowed_host_names_are_answered() {
    let lab = Lab::start(|setup| setup.settings("allowed_hosts = [\"mac.lan\"]"));
    let get = |host: &str| {
        let request = format!("GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        lab.client().raw(request.as_bytes())
    };
    assert_eq!(status_of(&get("mac.lan")), "200");
    assert_eq!(status_of(&get("other.lan")), "403");
}

fn cors_headers(reply: &headstart_tests::client::Reply) -> Vec<&str> {
    let all = reply.headers.iter().map(|(name, _)| name.as_str());
    all.filter(|name| name.starts_with("access-control-"))
        .collect()
}

const PAGE: &str = "https://chat.example";

#[test]
fn without_allowed_origins_there_are_no_cors_headers() {
    let lab = Lab::shared();
    let client = lab.client();
    for path in ["/health", "/v1/models", "/v1/nothing"] {
        let reply = client.get_with(path, &[("origin", PAGE)]);
        assert_eq!(cors_headers(&reply), Vec::<&str>::new(), "{path}");
    }
    let preflight = format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nhost: localhost\r\norigin: {PAGE}\r\naccess-control-request-method: POST\r\nconnection: close\r\n\r\n"
    );
    let answer = client.raw(preflight.as_bytes()).to_lowercase();
    assert!(!answer.contains("access-control-"), "{answer}");
}

#[test]
fn an_allowed_origin_gets_cors_headers_and_others_do_not() {
    let lab = Lab::start(|setup| setup.arguments(&["--allow-origin", PAGE, "--api-key", "k"]));
    let client = lab.client();
    let reply = client.get_with("/health", &[("origin", PAGE)]);
    assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE));
    for origin in [
        "https://evil.example",
        "http://chat.example",
        "https://chat.example.evil.example",
        "null",
    ] {
        let reply = client.get_with("/health", &[("origin", origin)]);
        assert_eq!(
            reply.header("access-control-allow-origin"),
            None,
            "{origin}"
        );
    }
    // A browser asks before it sends the key, and must be able to read that the key is wrong.
    let preflight = format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nhost: localhost\r\norigin: {PAGE}\r\naccess-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type\r\nconnection: close\r\n\r\n"
    );
    let answer = client.raw(preflight.as_bytes()).to_lowercase();
    assert_eq!(status_of(&answer), "200", "{answer}");
    assert!(
        answer.contains(&format!("access-control-allow-origin: {PAGE}")),
        "{answer}"
    );
    assert!(answer.contains("authorization"), "{answer}");
    let reply = client.get_with("/v1/models", &[("origin", PAGE)]);
    assert_eq!(reply.status, 401);
    assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE));
}

/// A form or a script of a web page can post plain text anywhere without asking; it cannot read the answer but would keep the engine busy.
#[test]
fn web_pages_cannot_post_blindly() {
    let lab = Lab::shared();
    let client = lab.client();
    let body = ask(TINY, "Hi", 1).to_string();
    let post = |headers: &[(&str, &str)]| client.post_bytes(CHAT, body.as_bytes(), headers).status;
    let plain = ("content-type", "text/plain");
    assert_eq!(post(&[plain, ("origin", "https://evil.example")]), 403);
    assert_eq!(post(&[plain, ("origin", "null")]), 403);
    // Not a browser, or the dashboard itself.
    assert_eq!(post(&[plain]), 200);
    let own = format!("http://{}", client.address());
    assert_eq!(post(&[plain, ("origin", &own)]), 200);
}

#[test]
fn the_key_is_asked_for_where_one_is_set() {
    let lab = Lab::start(|setup| setup.arguments(&["--api-key", "secret-key"]));
    let client = lab.client();
    let request = ask(TINY, "Hi", 1);
    let refused = client.post(CHAT, &request);
    let message = refused.error(401);
    assert!(message.contains("Authorization"), "{message}");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    for wrong in ["wrong", "secret-ke", "secret-keyy", "", "SECRET-KEY"] {
        let client = client.clone().with_key(wrong);
        client.post(CHAT, &request).error(401);
        client.get("/v1/models").error(401);
        client.get("/v1/models/test/tiny").error(401);
    }
    let holder = client.clone().with_key("secret-key");
    holder.chat(&request);
    holder.get("/v1/models").ok();
    let body = request.to_string();
    let reply = client.post_bytes(CHAT, body.as_bytes(), &[("x-api-key", "secret-key")]);
    assert_eq!(reply.status, 200, "{}", reply.text);
    // Anyone may ask whether the server lives, but not where the user's models lie.
    assert_eq!(client.get("/health").ok()["status"], "ok");
    assert!(client.get("/health").ok().get("model_dirs").is_none());
    assert!(holder.get("/health").ok()["model_dirs"].is_array());
    assert!(
        !lab.server.log().contains("secret-key"),
        "the log holds the key"
    );
}

#[test]
fn listening_beyond_this_machine_needs_a_key() {
    for arguments in [
        &["serve", "--port", "0", "--host", "0.0.0.0"][..],
        &["serve", "--port", "0", "--host", "::", "--api-key", ""],
    ] {
        let output = Home::new().run(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("without a key"), "{message}");
        assert!(message.contains("HEADSTART_API_KEY"), "{message}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn with_a_key_it_listens_beyond_this_machine() {
    let models = headstart_tests::models::Models::new();
    let server = Setup::new(models.path())
        .arguments(&["--host", "0.0.0.0", "--api-key", "k"])
        .start();
    let port = server.client().address().port();
    let client = headstart_tests::client::Client::new(([127, 0, 0, 1], port).into());
    client.get("/v1/models").error(401);
    client.with_key("k").get("/v1/models").ok();
}
