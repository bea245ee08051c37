//! Makes cargo notice a rebuilt dashboard.

fn main() {
    // rust-embed reads `ui/dist` while the crate is compiled, and cargo watches only the files that were there then.
    // A folder that does not exist would make cargo rebuild the crate every time, so an empty one is made; where that
    // is impossible the build only becomes slower.
    let _ = std::fs::create_dir_all("../../ui/dist");
    println!("cargo::rerun-if-changed=../../ui/dist");
    println!("cargo::rerun-if-changed=build.rs");
}
