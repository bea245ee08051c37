//! Headstart's menu-bar app: a tray menu and a window around the server, which runs in the same process.
//!
//! The server, the engine and the dashboard know nothing of this crate; it only starts them, shows their state and ends
//! them. Everything else the user sees is the page that the server serves.

pub mod host;
pub mod menu;
pub mod tray;
pub mod window;

use std::sync::Arc;

use tauri::{AppHandle, Manager, RunEvent, Runtime, Url, WindowEvent, async_runtime};
use tauri_plugin_clipboard_manager::ClipboardExt;
use tauri_plugin_opener::OpenerExt;

use crate::{
    host::Host,
    menu::{Action, ServerState},
};

/// Runs the app until the user quits.
///
/// # Errors
/// When the tray icon or the window system is not there.
pub fn run() -> tauri::Result<()> {
    log_to_stderr();
    let app = tauri::Builder::default()
        // Must be the first plugin: it ends a second process before that one does anything.
        .plugin(tauri_plugin_single_instance::init(
            |app, _arguments, _folder| perform(app, Action::OpenDashboard),
        ))
        .plugin(tauri_plugin_opener::init())
        .plugin(tauri_plugin_clipboard_manager::init())
        .setup(move |app| {
            #[cfg(target_os = "macos")]
            app.set_activation_policy(tauri::ActivationPolicy::Accessory);
            let app = app.handle();
            let shown = app.clone();
            let host = Arc::new(Host::new(move |state| show_state(&shown, state)));
            tray::install(app, &host.state(), perform)?;
            app.manage(Arc::clone(&host));
            async_runtime::spawn(async move { host.start().await });
            quit_on_signal(app.clone());
            Ok(())
        })
        .build(tauri::generate_context!())?;
    app.run(on_event);
    Ok(())
}

/// `HEADSTART_LOG` chooses what is logged, as for the command line `headstart`.
fn log_to_stderr() {
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("HEADSTART_LOG").unwrap_or_else(|_| {
            "warn,headstart_app=info,headstart_server=info,headstart_engine=info".into()
        });
    // Fails only where a subscriber exists already; that one stays then.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .try_init();
}

fn on_event<R: Runtime>(app: &AppHandle<R>, event: RunEvent) {
    match event {
        // Closing the last window must not end a menu-bar app. `exit(0)` comes with a code.
        RunEvent::ExitRequested {
            api, code: None, ..
        } => api.prevent_exit(),
        RunEvent::WindowEvent {
            label,
            event: WindowEvent::Destroyed,
            ..
        } if label == window::LABEL => {
            window::closed(app);
        }
        RunEvent::Exit => {
            let host = Arc::clone(&app.state::<Arc<Host>>());
            async_runtime::block_on(host.stop());
        }
        _ => {}
    }
}

fn show_state<R: Runtime>(app: &AppHandle<R>, state: &ServerState) {
    let Some(items) = app.try_state::<tray::Items<R>>() else {
        return;
    };
    if let Err(error) = items.show(state) {
        tracing::warn!(%error, "the tray menu could not be changed");
    }
}

/// Does what a menu item says. A failure is logged: there is no one to return it to.
fn perform<R: Runtime>(app: &AppHandle<R>, action: Action) {
    let Some(host) = app.try_state::<Arc<Host>>() else {
        return;
    };
    let host = Arc::clone(&host);
    if let Err(error) = try_perform(app, &host, action) {
        tracing::error!(?action, %error, "a menu action failed");
    }
}

fn try_perform<R: Runtime>(
    app: &AppHandle<R>,
    host: &Arc<Host>,
    action: Action,
) -> Result<(), Box<dyn std::error::Error>> {
    match (action, host.state()) {
        (Action::OpenDashboard, ServerState::Running(address)) => {
            window::show(app, Url::parse(&menu::dashboard_url(address))?)?;
        }
        (Action::OpenInBrowser, ServerState::Running(address)) => {
            app.opener()
                .open_url(menu::dashboard_url(address), None::<&str>)?;
        }
        (Action::CopyEndpoint, ServerState::Running(address)) => {
            app.clipboard().write_text(menu::endpoint_url(address))?;
        }
        // These are disabled in the menu while the server is down.
        (Action::OpenDashboard | Action::OpenInBrowser | Action::CopyEndpoint, _) => {}
        (Action::ToggleServer, _) => {
            let host = Arc::clone(host);
            async_runtime::spawn(async move { host.toggle().await });
        }
        (Action::Quit, _) => app.exit(0),
    }
    Ok(())
}

/// A terminated app would die without [`RunEvent::Exit`], leaving requests cut off: quit as the menu does instead.
#[cfg(unix)]
fn quit_on_signal<R: Runtime>(app: AppHandle<R>) {
    use tokio::signal::unix::{SignalKind, signal};
    async_runtime::spawn(async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) else {
            tracing::warn!(
                "signals cannot be handled; ending the process will cut off open requests"
            );
            return;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        app.exit(0);
    });
}

#[cfg(not(unix))]
fn quit_on_signal<R: Runtime>(_app: AppHandle<R>) {}
