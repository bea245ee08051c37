//! The real binary as a process of its own, with folders of its own: the user's settings and models are never seen.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::client::Client;

/// The binary `headstart`: `HEADSTART_BIN`, else the one beside this test, brought up to date first.
///
/// # Panics
/// When it cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("HEADSTART_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

/// `cargo test` builds binaries only for tests of their own package. So this asks cargo for the server's, in the target folder and
/// profile of the running test.
fn build() -> PathBuf {
    let Ok(test) = std::env::current_exe() else {
        panic!("this test does not know where it lies");
    };
    // TARGET[/TRIPLE]/PROFILE/deps/TEST
    let folders: Vec<&Path> = test.ancestors().skip(2).take(2).collect();
    let [profile_dir, parent] = folders[..] else {
        panic!("{} is in no target folder", test.display());
    };
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "headstart-server"])
        .args(["--bin", "headstart", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let triple = parent.file_name().and_then(|name| name.to_str());
    match (triple, parent.parent()) {
        // Cargo marks the target folder itself.
        (Some(triple), Some(target)) if !parent.join("CACHEDIR.TAG").exists() => cargo
            .args(["--target", triple])
            .arg("--target-dir")
            .arg(target),
        _ => cargo.arg("--target-dir").arg(parent),
    };
    match cargo.status() {
        Ok(status) if status.success() => {
            profile_dir.join(format!("headstart{}", std::env::consts::EXE_SUFFIX))
        }
        Ok(status) => panic!("the server could not be built: {status}"),
        Err(error) => panic!("cargo could not be started: {error}"),
    }
}

/// A home folder and a command that knows no other.
#[derive(Debug)]
pub struct Home(TempDir);

impl Home {
    /// An empty one.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn new() -> Self {
        match tempfile::tempdir() {
            Ok(folder) => Self(folder),
            Err(error) => panic!("no temporary folder: {error}"),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The binary with this home and none of the caller's settings.
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command
            .env("HOME", self.path())
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("XDG_DATA_HOME", self.path().join("data"))
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .current_dir(self.path());
        for name in ["HEADSTART_SETTINGS", "HEADSTART_API_KEY", "HEADSTART_LOG"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the binary to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let output = self.command().args(arguments).stdin(Stdio::null()).output();
        match output {
            Ok(output) => output,
            Err(error) => panic!("{}: {error}", binary().display()),
        }
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Model folders.
    pub model_dirs: Vec<PathBuf>,
    /// Further arguments of `serve`.
    pub arguments: Vec<String>,
    /// The content of the settings file.
    pub settings: String,
}

impl Setup {
    /// A server over one model folder.
    pub fn new(model_dir: &Path) -> Self {
        Self {
            model_dirs: vec![model_dir.to_path_buf()],
            ..Self::default()
        }
    }

    /// Adds arguments.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|argument| (*argument).to_string()));
        self
    }

    /// Sets the content of the settings file.
    pub fn settings(mut self, settings: &str) -> Self {
        self.settings = settings.to_string();
        self
    }

    /// Starts it.
    pub fn start(self) -> Server {
        Server::start(&self)
    }
}

/// A running server. Dropping it ends the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
    home: Home,
    // Held open: the server ends with it, and so with this process, even one that is killed.
    input: Option<ChildStdin>,
    // Held open: a server that cannot print must not be what is tested.
    _output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts `headstart serve` on a free port and waits until it says that it is ready.
    ///
    /// # Panics
    /// When it does not get ready; the message has its log.
    pub fn start(setup: &Setup) -> Self {
        let home = Home::new();
        let settings = home.path().join("settings.toml");
        let log = std::fs::write(&settings, &setup.settings)
            .and_then(|()| std::fs::File::create(log_path(&home)));
        let log = match log {
            Ok(log) => log,
            Err(error) => panic!("{}: {error}", home.path().display()),
        };
        let mut command = home.command();
        command
            .args(["serve", "--port", "0", "--device", "cpu", "--verbose"])
            .arg("--exit-with-stdin")
            .arg("--settings")
            .arg(&settings);
        for folder in &setup.model_dirs {
            command.arg("--model-dir").arg(folder);
        }
        command
            .args(&setup.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{}: {error}", binary().display()),
        };
        // `Child::wait` would close it.
        let input = child.stdin.take();
        let Some(output) = child.stdout.take() else {
            panic!("the server has no output");
        };
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let read = output.read_line(&mut line);
        let address = line
            .trim()
            .rsplit_once("http://")
            .and_then(|(_, address)| address.parse().ok());
        match (read, address) {
            (Ok(_), Some(address)) => Self {
                child,
                address,
                home,
                input,
                _output: output,
            },
            (read, _) => {
                // Whatever it does, it must not be left behind.
                let _ = child.kill();
                let status = child.wait();
                let log = std::fs::read_to_string(log_path(&home));
                panic!("not ready: {read:?} {line:?} {status:?} {log:?}");
            }
        }
    }

    /// A client without a key.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// What it wrote to standard error.
    ///
    /// # Panics
    /// When that cannot be read.
    pub fn log(&self) -> String {
        match std::fs::read_to_string(log_path(&self.home)) {
            Ok(log) => log,
            Err(error) => panic!("the log: {error}"),
        }
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes its standard input, as the end of this process would.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until the process ends by itself; the exit code.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn wait(&mut self) -> Option<i32> {
        match self.child.wait() {
            Ok(status) => status.code(),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_path(home: &Home) -> PathBuf {
    home.path().join("log")
}
