//! The command line: `headstart serve | run | bench | models | render | inspect`.

mod bench;
mod inspect;
mod models;
mod quantize;
mod render;
mod run;
mod serve;
mod speed;

use std::{io::IsTerminal, net::IpAddr, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use headstart_engine::{
    device::DeviceChoice,
    scheduler::{Engine, EngineOptions},
};

use crate::{
    library::{Library, LookupError, ModelEntry},
    paths,
    serve::{ServeOptions, model_folders},
    settings::{KeepAlive, Settings},
};

/// Runs language models on this machine and serves them to local apps.
#[derive(Debug, Parser)]
#[command(name = "headstart", version, about, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Common {
    /// A folder with models (repeatable); looked through before those of the settings and the app's own.
    #[arg(long = "model-dir", value_name = "DIR", global = true)]
    model_dirs: Vec<PathBuf>,
    /// Settings file instead of the standard one.
    #[arg(long, value_name = "FILE", global = true, env = "HEADSTART_SETTINGS")]
    settings: Option<PathBuf>,
    /// Where to compute: auto, cpu, metal, cuda.
    #[arg(long, value_name = "DEVICE", global = true)]
    device: Option<DeviceChoice>,
    /// More detail in the log, which goes to standard error.
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over HTTP: the dashboard at /, the OpenAI-compatible API under /v1.
    Serve(ServeArgs),
    /// Answer one prompt in the terminal.
    Run(run::RunArgs),
    /// Measure time to first token, prefill and decode speed, and memory.
    Bench(bench::BenchArgs),
    /// List the models that are found, and why some cannot be used.
    Models(models::ModelsArgs),
    /// Print exactly the prompt that a model is given for a conversation.
    Render(render::RenderArgs),
    /// Make a smaller MLX checkpoint out of an unquantized one.
    Quantize(quantize::QuantizeArgs),
    /// Show what a model is: architecture, tensors, quantization, tokenizer, template, memory.
    Inspect(inspect::InspectArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Address to listen on.
    #[arg(long)]
    host: Option<IpAddr>,
    /// Port to listen on; 0 takes any free one.
    #[arg(long)]
    port: Option<u16>,
    /// Key that clients must send as "Authorization: Bearer KEY".
    #[arg(long, env = "HEADSTART_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Origin of a web page that may call the API (repeatable), for example http://localhost:3000.
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
    /// What event streams carry while a prompt is read.
    #[arg(long, value_enum)]
    keep_alive: Option<KeepAlive>,
    /// Seconds between two signs of life.
    #[arg(long, value_name = "SECONDS")]
    keep_alive_seconds: Option<u64>,
    /// End when standard input is closed: for a program that starts this server and must not leave it behind, however it ends itself.
    #[arg(long)]
    exit_with_stdin: bool,
}

/// A failure for the terminal.
#[derive(Debug)]
struct Failure(String);

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = if cli.common.verbose { "debug" } else { "info" };
    let quiet = !matches!(cli.command, Command::Serve(_)) && !cli.common.verbose;
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("HEADSTART_LOG").unwrap_or_else(|_| {
            let level = if quiet { "error" } else { level };
            tracing_subscriber::EnvFilter::new(format!(
                "warn,headstart_server={level},headstart_engine={level}"
            ))
        });
    // A second subscriber can only exist when this is called from a test; the first one stays then.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
    if !matches!(cli.command, Command::Serve(_)) {
        end_quietly_on_a_closed_pipe();
    }
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message)) => {
            eprintln!("headstart: {message}");
            ExitCode::FAILURE
        }
    }
}

/// A reader that has seen enough (`headstart models | head -1`) ends the program instead of making it complain.
fn end_quietly_on_a_closed_pipe() {
    // SAFETY: the default action is no handler: nothing of ours runs inside the signal.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let options = serve_options(&cli.common)?;
    match cli.command {
        Command::Serve(args) => serve::serve(options, args),
        Command::Run(args) => run::run(&options, args),
        Command::Bench(args) => bench::bench(&options, &args),
        Command::Models(args) => models::models(&options, &args),
        Command::Render(args) => render::render(&options, &args),
        Command::Quantize(args) => quantize::quantize(args),
        Command::Inspect(args) => inspect::inspect(&options, &args),
    }
}

/// The settings file under the command line's choices.
fn serve_options(common: &Common) -> Result<ServeOptions, Failure> {
    let mut settings = match (&common.settings, paths::settings_file()) {
        // The standard file may be missing; one that was named is wanted: without it, a key that it sets would not be asked for.
        (Some(path), _) if !path.exists() => {
            return Err(Failure(format!(
                "the settings file {} is not there",
                path.display()
            )));
        }
        (Some(path), _) => Settings::read(path)?,
        (None, Some(path)) => Settings::read(&path)?,
        (None, None) => Settings::default(),
    };
    if let Some(device) = common.device {
        settings.device = device.to_string();
    }
    Ok(ServeOptions {
        settings,
        model_dirs: common.model_dirs.clone(),
    })
}

/// Finds a model by path or by its name in the library.
fn find_model(options: &ServeOptions, name: &str) -> Result<ModelEntry, Failure> {
    let path = PathBuf::from(name);
    if path.exists() {
        let modified = std::fs::metadata(&path)?.modified()?;
        let checkpoint = headstart_engine::checkpoint::Checkpoint::open(&path)?;
        return Ok(ModelEntry {
            id: name.to_string(),
            status: Ok(std::sync::Arc::new(checkpoint.summary()?)),
            path,
            modified,
        });
    }
    Library::new(model_folders(options))
        .find(name)
        .map_err(|error| {
            Failure(match error {
                LookupError::Unknown { known, .. } if known.is_empty() => {
                    let folders: Vec<String> = model_folders(options)
                        .iter()
                        .map(|f| f.display().to_string())
                        .collect();
                    format!("there is no model yet; looked in {}", folders.join(", "))
                }
                error => error.to_string(),
            })
        })
}

/// An engine of its own for one command.
fn start_engine(options: &ServeOptions) -> Result<Engine, Failure> {
    let device: DeviceChoice = options.settings.device.parse()?;
    Ok(Engine::start(EngineOptions {
        device: device.open()?,
        // One command asks nothing twice; and a benchmark must compute what it measures.
        prefix_cache_bytes: 0,
        ..EngineOptions::default()
    })?)
}

/// Bytes for people: `98.4 MB`.
fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human_bytes(999), "999 B");
        assert_eq!(human_bytes(98_362_432), "98.4 MB");
        assert_eq!(human_bytes(2_500_000_000_000_000), "2500.0 TB");
    }
}
