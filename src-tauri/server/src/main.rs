//! The command line `headstart`.

fn main() -> std::process::ExitCode {
    headstart_server::cli::main()
}
