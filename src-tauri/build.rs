//! Generates what Tauri needs at compile time from `tauri.conf.json`.

fn main() {
    tauri_build::build();
}
