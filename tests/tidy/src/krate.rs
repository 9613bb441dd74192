//! The public names of a crate, read from its sources. Of the items that macros define, only those in a `pub use` are seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use syn::{Attribute, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

/// The path of a module or item inside its crate. The crate's root is the empty path.
type ItemPath = Vec<String>;

/// The modules of a crate, by path.
pub(super) struct Krate {
    name: String,
    modules: BTreeMap<ItemPath, Module>,
    /// The public methods of each type, by the path of its definition.
    methods: BTreeMap<ItemPath, BTreeSet<String>>,
}

#[derive(Default)]
struct Module {
    items: BTreeMap<String, Definition>,
    uses: Vec<Use>,
    /// The inherent impl blocks: the type's path as it is written, and the public methods.
    impls: Vec<(ItemPath, BTreeSet<String>)>,
}

struct Definition {
    public: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Module,
    Type,
    Function,
    Other,
}

/// A `use` of one path. The name of a glob import is `*`.
struct Use {
    public: bool,
    path: ItemPath,
    name: String,
}

/// The lines of a crate's public names, and how many of them are types and functions.
#[derive(Default)]
pub struct Names {
    /// Each name as `CRATE::MODULE::NAME`, methods included. An item of another crate is followed by ` = ` and its path there.
    pub lines: BTreeSet<String>,
    /// The number of types.
    pub types: usize,
    /// The number of functions and methods.
    pub functions: usize,
}

/// What a path leads to: a definition of this crate, or a path of another one.
enum Target {
    Here(ItemPath),
    Elsewhere(ItemPath),
}

impl Krate {
    /// Reads the sources below a folder, from `lib.rs` along the module declarations.
    pub(super) fn read(name: &str, folder: &Path) -> Krate {
        let mut krate = Krate { name: name.to_owned(), modules: BTreeMap::new(), methods: BTreeMap::new() };
        krate.read_file(Vec::new(), &folder.join("lib.rs"), folder);
        krate.collect_methods();
        krate
    }

    /// Every public name that a user of the crate can reach. The methods of a type are listed below its shortest path.
    pub(super) fn public_names(&self) -> Names {
        let mut found = Vec::new();
        let mut names = Names::default();
        self.walk(&Vec::new(), &Vec::new(), &mut BTreeSet::new(), &mut found, &mut names);
        found.sort_by_key(|(shown, _): &(ItemPath, ItemPath)| (shown.len(), shown.clone()));
        let mut defined = BTreeSet::new();
        for (shown, definition) in found {
            names.lines.insert(self.line(&shown));
            if !defined.insert(definition.clone()) {
                continue;
            }
            match self.definition(&definition).map(|found| found.kind) {
                Some(Kind::Type) | None => names.types += 1,
                Some(Kind::Function) => names.functions += 1,
                Some(Kind::Module | Kind::Other) => {}
            }
            for method in self.methods.get(&definition).into_iter().flatten() {
                names.functions += 1;
                names.lines.insert(format!("{}::{method}", self.line(&shown)));
            }
        }
        names
    }

    fn line(&self, path: &[String]) -> String {
        [std::slice::from_ref(&self.name), path].concat().join("::")
    }

    /// Collects the public items of a module, each with the path that users see and the path of its definition.
    fn walk(
        &self,
        module: &ItemPath,
        shown: &ItemPath,
        active: &mut BTreeSet<ItemPath>,
        found: &mut Vec<(ItemPath, ItemPath)>,
        names: &mut Names,
    ) {
        if !active.insert(module.clone()) {
            return;
        }
        let here = &self.modules[module];
        for (name, item) in here.items.iter().filter(|(_, item)| item.public) {
            let path = join(module, name);
            if item.kind == Kind::Module {
                self.walk(&path, &join(shown, name), active, found, names);
            } else {
                found.push((join(shown, name), path));
            }
        }
        for import in here.uses.iter().filter(|import| import.public) {
            match self.resolve(module, &import.path, 0) {
                Some(Target::Here(path)) if import.name == "*" => self.walk(&path, shown, active, found, names),
                Some(Target::Here(path)) if self.modules.contains_key(&path) => {
                    self.walk(&path, &join(shown, &import.name), active, found, names);
                }
                Some(Target::Here(path)) => found.push((join(shown, &import.name), path)),
                Some(Target::Elsewhere(path)) => {
                    names.lines.insert(format!("{} = {}", self.line(&join(shown, &import.name)), path.join("::")));
                }
                None => panic!("cannot resolve {} in {}", import.path.join("::"), self.line(module)),
            }
        }
        active.remove(module);
    }

    fn definition(&self, path: &[String]) -> Option<&Definition> {
        let (name, module) = path.split_last()?;
        self.modules.get(module)?.items.get(name)
    }

    /// Follows a path from a module, along imports. Depth ends the search in a cycle of imports.
    fn resolve(&self, module: &ItemPath, path: &[String], depth: usize) -> Option<Target> {
        if depth > 12 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return self.resolve_below(&Vec::new(), rest, depth),
            "self" => return self.resolve_below(module, rest, depth),
            "super" => {
                let parent = module[..module.len() - 1].to_vec();
                return if rest.first().is_some_and(|next| next == "super") {
                    self.resolve(&parent, rest, depth + 1)
                } else {
                    self.resolve_below(&parent, rest, depth)
                };
            }
            _ => {}
        }
        match self.resolve_below(module, path, depth) {
            Some(target) => Some(target),
            // A macro defines the item.
            None if self.modules.contains_key(&join(module, first)) => Some(Target::Here([module, path].concat())),
            None => Some(Target::Elsewhere(path.to_vec())),
        }
    }

    fn resolve_below(&self, module: &ItemPath, path: &[String], depth: usize) -> Option<Target> {
        let Some((first, rest)) = path.split_first() else { return Some(Target::Here(module.clone())) };
        let here = self.modules.get(module)?;
        if let Some(item) = here.items.get(first) {
            let item_path = join(module, first);
            return if item.kind == Kind::Module {
                self.resolve_below(&item_path, rest, depth)
            } else {
                Some(Target::Here(item_path))
            };
        }
        for import in &here.uses {
            let full = if import.name == *first {
                [&import.path, rest].concat()
            } else if import.name == "*" {
                [&import.path, path].concat()
            } else {
                continue;
            };
            // An import of a name that is the first of its own path leads to another crate.
            if import.path.first() == Some(first) {
                return Some(Target::Elsewhere(full));
            }
            match self.resolve(module, &full, depth + 1) {
                Some(Target::Elsewhere(_)) if import.name == "*" => {}
                Some(target) => return Some(target),
                None => {}
            }
        }
        None
    }

    fn collect_methods(&mut self) {
        let mut methods: BTreeMap<ItemPath, BTreeSet<String>> = BTreeMap::new();
        for (path, module) in &self.modules {
            for (of, names) in &module.impls {
                if let Some(Target::Here(definition)) = self.resolve(path, of, 0) {
                    methods.entry(definition).or_default().extend(names.iter().cloned());
                }
            }
        }
        self.methods = methods;
    }

    fn read_file(&mut self, path: ItemPath, file: &Path, children: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        self.read_items(path, parsed.items, children);
    }

    fn read_items(&mut self, path: ItemPath, items: Vec<Item>, children: &Path) {
        let mut module = Module::default();
        for item in items {
            match item {
                Item::Mod(it) if !is_left_out(&it.attrs) => {
                    let name = it.ident.to_string();
                    let (below, folder) = (join(&path, &name), children.join(&name));
                    match it.content {
                        Some((_, items)) => self.read_items(below, items, &folder),
                        None => self.read_file(below, &children.join(format!("{name}.rs")), &folder),
                    }
                    module.define(name, &it.vis, Kind::Module);
                }
                Item::Use(it) if !is_left_out(&it.attrs) => {
                    module.import(is_public(&it.vis), &it.tree, &Vec::new());
                }
                Item::Impl(it) if it.trait_.is_none() && !is_left_out(&it.attrs) => {
                    let Type::Path(of) = *it.self_ty else { continue };
                    let methods = it.items.iter().filter_map(public_method).collect();
                    module.impls.push((of.path.segments.iter().map(|part| part.ident.to_string()).collect(), methods));
                }
                Item::Trait(it) if !is_left_out(&it.attrs) => {
                    let methods = it.items.iter().filter_map(|item| match item {
                        TraitItem::Fn(it) if !is_left_out(&it.attrs) => Some(it.sig.ident.to_string()),
                        _ => None,
                    });
                    module.impls.push((vec![it.ident.to_string()], methods.collect()));
                    module.define(it.ident.to_string(), &it.vis, Kind::Type);
                }
                Item::Struct(it) if !is_left_out(&it.attrs) => {
                    module.define(it.ident.to_string(), &it.vis, Kind::Type);
                }
                Item::Enum(it) if !is_left_out(&it.attrs) => {
                    module.define(it.ident.to_string(), &it.vis, Kind::Type);
                }
                Item::Type(it) if !is_left_out(&it.attrs) => {
                    module.define(it.ident.to_string(), &it.vis, Kind::Type);
                }
                Item::Fn(it) if !is_left_out(&it.attrs) => {
                    module.define(it.sig.ident.to_string(), &it.vis, Kind::Function);
                }
                Item::Const(it) if !is_left_out(&it.attrs) => {
                    module.define(it.ident.to_string(), &it.vis, Kind::Other);
                }
                Item::Static(it) if !is_left_out(&it.attrs) => {
                    module.define(it.ident.to_string(), &it.vis, Kind::Other);
                }
                _ => {}
            }
        }
        self.modules.insert(path, module);
    }
}

impl Module {
    fn define(&mut self, name: String, visibility: &Visibility, kind: Kind) {
        self.items.insert(name, Definition { public: is_public(visibility), kind });
    }

    fn import(&mut self, public: bool, tree: &UseTree, before: &ItemPath) {
        let mut add = |path: ItemPath, name: String| self.uses.push(Use { public, path, name });
        match tree {
            UseTree::Path(it) => self.import(public, &it.tree, &join(before, &it.ident.to_string())),
            // `use a::{self}` imports `a`.
            UseTree::Name(it) if it.ident == "self" => {
                add(before.clone(), before.last().cloned().unwrap_or_default());
            }
            UseTree::Name(it) => add(join(before, &it.ident.to_string()), it.ident.to_string()),
            UseTree::Rename(it) => add(join(before, &it.ident.to_string()), it.rename.to_string()),
            UseTree::Glob(_) => add(before.clone(), "*".to_owned()),
            UseTree::Group(it) => it.items.iter().for_each(|tree| self.import(public, tree, before)),
        }
    }
}

fn public_method(item: &ImplItem) -> Option<String> {
    match item {
        ImplItem::Fn(it) if is_public(&it.vis) && !is_left_out(&it.attrs) => Some(it.sig.ident.to_string()),
        _ => None,
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether the item is only for tests, or hidden from the documentation.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let word = if attribute.path().is_ident("cfg") {
            "test"
        } else if attribute.path().is_ident("doc") {
            "hidden"
        } else {
            return false;
        };
        attribute.parse_args::<syn::Ident>().is_ok_and(|argument| argument == word)
    })
}

fn join(path: &[String], name: &str) -> ItemPath {
    [path, &[name.to_owned()]].concat()
}
