//! The tray menu as data: a pure function from the server's state. No Tauri type here, so it is tested without a display.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What the server inside the app is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerState {
    /// Binding the port and scanning the model folders.
    Starting,
    /// Serving on this address.
    Running(SocketAddr),
    /// Finishing open requests.
    Stopping,
    /// Stopped by the user.
    Stopped,
    /// Did not start; the reason in words.
    Failed(String),
}

/// What a menu item does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Show the dashboard in the app's own window.
    OpenDashboard,
    /// Show the dashboard in the default browser.
    OpenInBrowser,
    /// Copy the API's base URL to the clipboard.
    CopyEndpoint,
    /// Start the server if it is down, stop it if it is up.
    ToggleServer,
    /// Stop the server and end the app.
    Quit,
}

impl Action {
    const ALL: [Self; 5] = [
        Self::OpenDashboard,
        Self::OpenInBrowser,
        Self::CopyEndpoint,
        Self::ToggleServer,
        Self::Quit,
    ];

    /// The menu item's identifier.
    pub fn id(self) -> &'static str {
        match self {
            Self::OpenDashboard => "open-dashboard",
            Self::OpenInBrowser => "open-in-browser",
            Self::CopyEndpoint => "copy-endpoint",
            Self::ToggleServer => "toggle-server",
            Self::Quit => "quit",
        }
    }

    /// The action of a menu item, `None` for one that does nothing.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.id() == id)
    }
}

/// Identifier of the line that shows the server's state.
pub const STATE_ID: &str = "state";

/// One entry of the menu.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// An item with a text; a disabled one is shown grey and cannot be chosen.
    Item {
        /// Identifier, unique in the menu.
        id: &'static str,
        /// What the user reads.
        text: String,
        /// Whether it can be chosen.
        enabled: bool,
    },
    /// A line between groups.
    Separator,
}

/// The menu for a state. The entries are the same ones in the same order for every state, only texts and `enabled` differ:
/// on macOS a menu must not be rebuilt while it may be open (muda issue 328), so the tray changes its items in place.
pub fn menu(state: &ServerState) -> Vec<Entry> {
    let running = matches!(state, ServerState::Running(_));
    let steady = !matches!(state, ServerState::Starting | ServerState::Stopping);
    let item = |action: Action, text: &str, enabled| Entry::Item {
        id: action.id(),
        text: text.to_owned(),
        enabled,
    };
    vec![
        Entry::Item {
            id: STATE_ID,
            text: state_line(state),
            enabled: false,
        },
        Entry::Separator,
        item(Action::OpenDashboard, "Open Dashboard", running),
        item(Action::OpenInBrowser, "Open in Browser", running),
        item(Action::CopyEndpoint, "Copy Endpoint URL", running),
        Entry::Separator,
        item(
            Action::ToggleServer,
            if running {
                "Stop Server"
            } else {
                "Start Server"
            },
            steady,
        ),
        Entry::Separator,
        item(Action::Quit, "Quit Headstart", true),
    ]
}

fn state_line(state: &ServerState) -> String {
    match state {
        ServerState::Starting => "Starting…".to_owned(),
        ServerState::Running(address) => format!("Running at {}", local_address(*address)),
        ServerState::Stopping => "Stopping…".to_owned(),
        ServerState::Stopped => "Stopped".to_owned(),
        ServerState::Failed(reason) => format!("Could not start: {}", shortened(reason, 80)),
    }
}

/// At most `limit` characters, since a menu is as wide as its longest line.
fn shortened(text: &str, limit: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= limit {
        return line.to_owned();
    }
    line.chars().take(limit - 1).chain(['…']).collect()
}

/// How this machine reaches a server: one that listens on all interfaces is reached over loopback.
fn local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Where the dashboard is, for this machine's window and browser.
pub fn dashboard_url(address: SocketAddr) -> String {
    format!("http://{}/", local_address(address))
}

/// The API's base URL, as chat apps want it.
pub fn endpoint_url(address: SocketAddr) -> String {
    format!("http://{}/v1", local_address(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<ServerState> {
        vec![
            ServerState::Starting,
            ServerState::Running("127.0.0.1:8000".parse().unwrap()),
            ServerState::Stopping,
            ServerState::Stopped,
            ServerState::Failed("port 8000 is taken".into()),
        ]
    }

    fn find(state: &ServerState, id: &str) -> (String, bool) {
        let found = menu(state).into_iter().find_map(|entry| match entry {
            Entry::Item {
                id: other,
                text,
                enabled,
            } if other == id => Some((text, enabled)),
            _ => None,
        });
        found.unwrap()
    }

    #[test]
    fn entries_never_move_so_the_menu_is_never_rebuilt() {
        let shape = |state: &ServerState| -> Vec<Option<&'static str>> {
            let id = |entry| match entry {
                Entry::Item { id, .. } => Some(id),
                Entry::Separator => None,
            };
            menu(state).into_iter().map(id).collect()
        };
        let first = shape(&ServerState::Starting);
        for state in states() {
            assert_eq!(shape(&state), first, "{state:?}");
        }
    }

    #[test]
    fn every_item_has_its_action() {
        for entry in menu(&ServerState::Stopped) {
            let Entry::Item { id, .. } = entry else {
                continue;
            };
            assert_eq!(
                Action::from_id(id).map(Action::id),
                (id != STATE_ID).then_some(id)
            );
        }
        assert_eq!(Action::from_id("unheard-of"), None);
    }

    #[test]
    fn the_state_line_says_what_happens_and_cannot_be_chosen() {
        let texts: Vec<String> = states()
            .iter()
            .map(|state| find(state, STATE_ID).0)
            .collect();
        assert_eq!(
            texts,
            [
                "Starting…",
                "Running at 127.0.0.1:8000",
                "Stopping…",
                "Stopped",
                "Could not start: port 8000 is taken"
            ]
        );
        assert!(states().iter().all(|state| !find(state, STATE_ID).1));
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let state = ServerState::Failed("ü".repeat(500) + "\nsecond line");
        let text = find(&state, STATE_ID).0;
        assert!(text.ends_with("ü…"), "{text}");
        assert_eq!(text.chars().count(), "Could not start: ".len() + 80);
    }

    #[test]
    fn only_a_running_server_can_be_opened_and_copied() {
        for state in states() {
            let running = matches!(state, ServerState::Running(_));
            for action in [
                Action::OpenDashboard,
                Action::OpenInBrowser,
                Action::CopyEndpoint,
            ] {
                assert_eq!(find(&state, action.id()).1, running, "{state:?} {action:?}");
            }
            assert!(find(&state, Action::Quit.id()).1);
        }
    }

    #[test]
    fn the_toggle_offers_the_other_state_and_waits_while_it_changes() {
        let toggles: Vec<(String, bool)> = states()
            .iter()
            .map(|state| find(state, Action::ToggleServer.id()))
            .collect();
        let want = [
            ("Start Server", false),
            ("Stop Server", true),
            ("Start Server", false),
            ("Start Server", true),
            ("Start Server", true),
        ];
        for (got, want) in toggles.iter().zip(want) {
            assert_eq!((got.0.as_str(), got.1), want);
        }
    }

    #[test]
    fn urls_are_ones_this_machine_can_open() {
        for (address, want) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000/"),
            ("0.0.0.0:9", "http://127.0.0.1:9/"),
            ("[::]:9", "http://[::1]:9/"),
            ("192.168.1.5:80", "http://192.168.1.5:80/"),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(dashboard_url(address), want);
            assert_eq!(endpoint_url(address), format!("{want}v1"));
        }
    }
}
