//! Starts the menu-bar app.

use std::process::ExitCode;

fn main() -> ExitCode {
    match headstart_app::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Headstart could not start: {error}");
            ExitCode::FAILURE
        }
    }
}
