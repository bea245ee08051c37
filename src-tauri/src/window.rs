//! The window that shows the dashboard: a web view on the page that the server serves.

use tauri::{AppHandle, Manager, Runtime, Url, WebviewUrl, WebviewWindowBuilder};

/// Label of the one window.
pub const LABEL: &str = "dashboard";

/// Shows the dashboard at `url`, in the window that is open or in a new one.
///
/// The page gets no access to Tauri: it talks HTTP to the server, as it does in any browser.
pub fn show<R: Runtime>(app: &AppHandle<R>, url: Url) -> tauri::Result<()> {
    become_regular(app, true)?;
    if let Some(window) = app.get_webview_window(LABEL) {
        if window.url()?.origin() != url.origin() {
            window.navigate(url)?;
        }
        window.unminimize()?;
        window.show()?;
        return window.set_focus();
    }
    WebviewWindowBuilder::new(app, LABEL, WebviewUrl::External(url))
        .title("Headstart")
        .inner_size(1100.0, 760.0)
        .min_inner_size(480.0, 400.0)
        .build()?;
    Ok(())
}

/// To be called when the window has been closed: the app is a mere menu-bar app again.
pub fn closed<R: Runtime>(app: &AppHandle<R>) {
    if let Err(error) = become_regular(app, false) {
        tracing::warn!(%error, "the Dock icon could not be removed");
    }
}

/// On macOS the window of an app without a Dock icon sinks behind others and cannot be reached with Cmd-Tab, so the app
/// is a regular one for as long as its window is open.
#[cfg(target_os = "macos")]
fn become_regular<R: Runtime>(app: &AppHandle<R>, regular: bool) -> tauri::Result<()> {
    use tauri::ActivationPolicy::{Accessory, Regular};
    app.set_activation_policy(if regular { Regular } else { Accessory })
}

#[cfg(not(target_os = "macos"))]
fn become_regular<R: Runtime>(_app: &AppHandle<R>, _regular: bool) -> tauri::Result<()> {
    Ok(())
}
