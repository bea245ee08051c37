//! `headstart serve`.

use std::io::{Read, Write};

use tokio::sync::oneshot;

use super::{Failure, ServeArgs};
use crate::serve::{ServeOptions, model_folders, start};

/// Serves until the process is asked to end.
pub(super) fn serve(mut options: ServeOptions, args: ServeArgs) -> Result<(), Failure> {
    let settings = &mut options.settings;
    if let Some(host) = args.host {
        settings.host = host;
    }
    if let Some(port) = args.port {
        settings.port = port;
    }
    if let Some(key) = args.api_key {
        settings.api_key = Some(key);
    }
    // An empty key is no key: `HEADSTART_API_KEY=` must not be a password that everyone knows.
    settings.api_key = settings.api_key.take().filter(|key| !key.is_empty());
    settings.allowed_origins.extend(args.allowed_origins);
    if let Some(mode) = args.keep_alive {
        settings.sse_keepalive = mode;
    }
    if let Some(seconds) = args.keep_alive_seconds {
        settings.sse_keepalive_seconds = seconds;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let folders = model_folders(&options);
        let mut server = start(options).await?;
        let mut out = std::io::stdout();
        writeln!(out, "Headstart is ready at {}", server.url())?;
        writeln!(out, "  API for apps: {}/v1", server.url())?;
        for folder in folders {
            writeln!(out, "  models from:  {}", folder.display())?;
        }
        out.flush()?;
        tokio::select! {
            () = server.wait() => return Err(Failure("the server ended by itself; the log says why".into())),
            () = asked_to_end() => {}
            () = input_closed(args.exit_with_stdin) => {}
        }
        server.shutdown().await;
        Ok(())
    })
}

/// Waits until standard input is closed; for ever when that is not `wanted`.
async fn input_closed(wanted: bool) {
    if wanted {
        let (closed, wait) = oneshot::channel::<()>();
        // A thread of our own: the runtime would wait for its end, and a read cannot be cancelled.
        let thread = std::thread::Builder::new().spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut ignored = [0; 1024];
            // An input that cannot be read is as good as closed.
            while input.read(&mut ignored).is_ok_and(|count| count > 0) {}
            drop(closed);
        });
        match thread {
            // The sender sends nothing: it is dropped when the input ends.
            Ok(_) => _ = wait.await,
            Err(error) => {
                tracing::warn!(%error, "standard input is not watched");
                std::future::pending().await
            }
        }
    } else {
        std::future::pending().await
    }
}

/// Waits for Ctrl-C or SIGTERM.
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "SIGTERM cannot be handled");
            // Without a handler for Ctrl-C either, the system ends the process.
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
