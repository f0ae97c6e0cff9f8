//! The first program of every Pod: it holds the Pod's namespaces, and does nothing.

fn main() {
    loop {
        std::thread::park();
    }
}
