//! Puts the menu model into the system's tray, and keeps it up to date.

use tauri::{
    AppHandle, Manager, Runtime,
    menu::{Menu, MenuItem, PredefinedMenuItem},
    tray::TrayIconBuilder,
};

use crate::menu::{self, Action, Entry, ServerState};

/// The menu's items in the order of the model, kept so that they can be changed in place.
pub struct Items<R: Runtime>(Vec<(&'static str, MenuItem<R>)>);

impl<R: Runtime> Items<R> {
    /// Makes the shown menu say what `state` says.
    pub fn show(&self, state: &ServerState) -> tauri::Result<()> {
        for entry in menu::menu(state) {
            let Entry::Item { id, text, enabled } = entry else {
                continue;
            };
            if let Some((_, item)) = self.0.iter().find(|(other, _)| *other == id) {
                item.set_text(text)?;
                item.set_enabled(enabled)?;
            }
        }
        Ok(())
    }
}

/// Creates the tray icon with its menu, and leaves the [`Items`] in the app's state.
pub fn install<R: Runtime>(
    app: &AppHandle<R>,
    state: &ServerState,
    on_action: impl Fn(&AppHandle<R>, Action) + Send + Sync + 'static,
) -> tauri::Result<()> {
    let menu = Menu::new(app)?;
    let mut items = Vec::new();
    for entry in menu::menu(state) {
        match entry {
            Entry::Item { id, text, enabled } => {
                let item = MenuItem::with_id(app, id, text, enabled, None::<&str>)?;
                menu.append(&item)?;
                items.push((id, item));
            }
            Entry::Separator => menu.append(&PredefinedMenuItem::separator(app)?)?,
        }
    }
    // A template image takes the menu bar's colour on macOS; elsewhere it would be black on a dark panel.
    #[cfg(target_os = "macos")]
    let icon = tauri::include_image!("icons/tray.png");
    #[cfg(not(target_os = "macos"))]
    let icon = tauri::include_image!("icons/32x32.png");
    TrayIconBuilder::with_id("headstart")
        .icon(icon)
        .icon_as_template(cfg!(target_os = "macos"))
        .tooltip("Headstart")
        .menu(&menu)
        .show_menu_on_left_click(true)
        .on_menu_event(move |app, event| {
            if let Some(action) = Action::from_id(event.id().as_ref()) {
                on_action(app, action);
            }
        })
        .build(app)?;
    app.manage(Items(items));
    Ok(())
}
