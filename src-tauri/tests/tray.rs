//! The app as a whole: its real tray menu, clicked over D-Bus, and the server behind it. Linux, under a display and a
//! session bus of its own:
//!
//! ```text
//! xvfb-run -a dbus-run-session -- cargo test -p headstart-app --test tray -- --ignored
//! ```
#![cfg(target_os = "linux")]
// A test that cannot go on must stop.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use support::{PATIENCE, Panel, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

/// The status line of the answer to `GET path`, or `None` when nobody answers.
async fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    Some(String::from_utf8_lossy(&answer).lines().next()?.to_owned())
}

#[tokio::test]
#[ignore = "needs a display and a session bus of its own"]
async fn needs_display_the_menu_starts_stops_and_quits() {
    let home = tempfile::tempdir().unwrap();
    // Settings and models of its own, and any free port.
    let settings = home.path().join("headstart/settings.toml");
    std::fs::create_dir_all(settings.parent().unwrap()).unwrap();
    std::fs::write(&settings, "port = 0\n").unwrap();
    let panel = Panel::open().await.unwrap();
    let mut app = Command::new(env!("CARGO_BIN_EXE_headstart-app"))
        .env("HOME", home.path())
        .envs(
            ["XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"].map(|name| (name, home.path())),
        )
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let menu = panel.menu().await;
    let state = async || Some(menu.items().await.ok()?.first()?.label.clone());
    let running = async || Some(state().await?.strip_prefix("Running at ")?.to_owned());

    let address = until("the server does not start", running).await;
    assert!(get(&address, "/health").await.unwrap().contains("200"));
    assert!(get(&address, "/").await.unwrap().contains("200"));
    let labels: Vec<(String, bool)> = menu
        .items()
        .await
        .unwrap()
        .into_iter()
        .map(|item| (item.label, item.enabled))
        .collect();
    let on = |label: &str| (label.to_owned(), true);
    assert_eq!(
        labels,
        [
            (format!("Running at {address}"), false),
            on("Open Dashboard"),
            on("Open in Browser"),
            on("Copy Endpoint URL"),
            on("Stop Server"),
            on("Quit Headstart"),
        ]
    );

    menu.click("Stop Server").await;
    until("the server does not stop", async || {
        (state().await? == "Stopped").then_some(())
    })
    .await;
    assert_eq!(get(&address, "/health").await, None, "the port is closed");
    let items = menu.items().await.unwrap();
    assert!(
        !items
            .iter()
            .find(|item| item.label == "Open Dashboard")
            .unwrap()
            .enabled
    );

    menu.click("Start Server").await;
    let address = until("the server does not start again", running).await;
    assert!(get(&address, "/health").await.unwrap().contains("200"));

    menu.click("Open Dashboard").await;
    menu.click("Quit Headstart").await;
    let status = tokio::time::timeout(PATIENCE, app.wait())
        .await
        .expect("the app does not quit")
        .unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(
        get(&address, "/health").await,
        None,
        "nothing is left behind"
    );
}
