//! A desktop panel for tests: the StatusNotifierWatcher that tray icons register with, and a client of their menus
//! (com.canonical.dbusmenu), over the session bus. No GUI library.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use zbus::{
    Connection, Proxy, interface,
    message::Header,
    object_server::SignalEmitter,
    zvariant::{OwnedObjectPath, OwnedValue, Structure, Value},
};

/// How long anything may take; generous, since nothing measures it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tries until `attempt` gives something, or panics with `what` after [`PATIENCE`].
pub(crate) async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(tokio::time::Instant::now() < end, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[derive(Clone, Default)]
struct Watcher {
    items: Arc<Mutex<Vec<(String, String)>>>,
}

#[interface(name = "org.kde.StatusNotifierWatcher")]
impl Watcher {
    async fn register_status_notifier_item(
        &self,
        service: &str,
        #[zbus(header)] header: Header<'_>,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) {
        // libayatana-appindicator gives an object path, others a bus name.
        let item = match (service.starts_with('/'), header.sender()) {
            (true, Some(sender)) => (sender.to_string(), service.to_owned()),
            _ => (service.to_owned(), "/StatusNotifierItem".to_owned()),
        };
        let _ =
            Self::status_notifier_item_registered(&emitter, &format!("{}{}", item.0, item.1)).await;
        self.items.lock().unwrap().push(item);
    }

    fn register_status_notifier_host(&self, _service: &str) {}

    #[zbus(property)]
    fn registered_status_notifier_items(&self) -> Vec<String> {
        self.items
            .lock()
            .unwrap()
            .iter()
            .map(|(name, path)| format!("{name}{path}"))
            .collect()
    }

    #[zbus(property)]
    fn is_status_notifier_host_registered(&self) -> bool {
        true
    }

    #[zbus(property)]
    fn protocol_version(&self) -> i32 {
        0
    }

    #[zbus(signal)]
    async fn status_notifier_item_registered(
        emitter: &SignalEmitter<'_>,
        service: &str,
    ) -> zbus::Result<()>;
}

/// The panel. Must exist before the app starts, so that the tray icon finds it.
pub(crate) struct Panel {
    connection: Connection,
    watcher: Watcher,
}

impl Panel {
    pub(crate) async fn open() -> zbus::Result<Self> {
        let watcher = Watcher::default();
        let connection = zbus::connection::Builder::session()?
            .name("org.kde.StatusNotifierWatcher")?
            .serve_at("/StatusNotifierWatcher", watcher.clone())?
            .build()
            .await?;
        Ok(Self {
            connection,
            watcher,
        })
    }

    /// Waits for the first tray icon and gives its menu.
    pub(crate) async fn menu(&self) -> Menu {
        let (name, path) = until("no tray icon registered", async || {
            self.watcher.items.lock().unwrap().first().cloned()
        })
        .await;
        let item = Proxy::new(
            &self.connection,
            name.clone(),
            path,
            "org.kde.StatusNotifierItem",
        )
        .await
        .unwrap();
        let menu: OwnedObjectPath = item.get_property("Menu").await.unwrap();
        Menu(
            Proxy::new(&self.connection, name, menu, "com.canonical.dbusmenu")
                .await
                .unwrap(),
        )
    }
}

/// One item as the panel sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    id: i32,
    pub(crate) label: String,
    pub(crate) enabled: bool,
}

/// A tray icon's menu.
pub(crate) struct Menu(Proxy<'static>);

/// Identifier, properties and children, as dbusmenu's GetLayout gives them.
type Layout = (i32, HashMap<String, OwnedValue>, Vec<OwnedValue>);

impl Menu {
    /// The items of the top level, without separators.
    pub(crate) async fn items(&self) -> zbus::Result<Vec<Item>> {
        let (_revision, root): (u32, Layout) = self
            .0
            .call("GetLayout", &(0i32, 1i32, Vec::<&str>::new()))
            .await?;
        let mut items = Vec::new();
        for child in root.2 {
            let child: Structure = child.try_into()?;
            let (id, properties, _) = Layout::try_from(OwnedValue::try_from(Value::from(child))?)?;
            let Some(label) = properties
                .get("label")
                .and_then(|value| String::try_from(value.clone()).ok())
            else {
                continue;
            };
            let enabled = properties
                .get("enabled")
                .and_then(|value| bool::try_from(value.clone()).ok());
            // An underscore marks the next letter as the item's key.
            items.push(Item {
                id,
                label: label.replace('_', ""),
                enabled: enabled.unwrap_or(true),
            });
        }
        Ok(items)
    }

    /// Waits for an enabled item with this label and clicks it.
    pub(crate) async fn click(&self, label: &str) {
        let item = until(&format!("no enabled item {label:?}"), async || {
            self.items()
                .await
                .ok()?
                .into_iter()
                .find(|item| item.label == label && item.enabled)
        })
        .await;
        let _: () = self
            .0
            .call("Event", &(item.id, "clicked", Value::from(""), 0u32))
            .await
            .unwrap();
    }
}
