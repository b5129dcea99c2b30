/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_names.h"

#include <stdlib.h>

/* Sorted by the old name. is_lossy: reading maps it, writing uses another old name or keeps the new one. */
struct module_pair {
    const char *old_module, *new_module;
    bool is_lossy;
};

static const struct module_pair module_pairs[] = {
    { "BaseHTTPServer", "http.server", false },
    { "CGIHTTPServer", "http.server", true },
    { "ConfigParser", "configparser", false },
    { "Cookie", "http.cookies", false },
    { "Dialog", "tkinter.dialog", false },
    { "DocXMLRPCServer", "xmlrpc.server", true },
    { "FileDialog", "tkinter.filedialog", true },
    { "HTMLParser", "html.parser", false },
    { "Queue", "queue", false },
    { "ScrolledText", "tkinter.scrolledtext", false },
    { "SimpleDialog", "tkinter.simpledialog", true },
    { "SimpleHTTPServer", "http.server", true },
    { "SimpleXMLRPCServer", "xmlrpc.server", false },
    { "SocketServer", "socketserver", false },
    { "StringIO", "io", true },
    { "Tix", "tkinter.tix", false },
    { "Tkconstants", "tkinter.constants", false },
    { "Tkdnd", "tkinter.dnd", false },
    { "Tkinter", "tkinter", false },
    { "UserDict", "collections", true },
    { "UserList", "collections", true },
    { "UserString", "collections", true },
    { "__builtin__", "builtins", false },
    { "_abcoll", "collections.abc", false },
    { "_elementtree", "xml.etree.ElementTree", true },
    { "_winreg", "winreg", false },
    { "anydbm", "dbm", false },
    { "cPickle", "pickle", true },
    { "cStringIO", "io", true },
    { "commands", "subprocess", false },
    { "cookielib", "http.cookiejar", false },
    { "copy_reg", "copyreg", false },
    { "dbhash", "dbm.bsd", false },
    { "dbm", "dbm.ndbm", false },
    { "dumbdbm", "dbm.dumb", false },
    { "dummy_thread", "_dummy_thread", false },
    { "gdbm", "dbm.gnu", false },
    { "htmlentitydefs", "html.entities", false },
    { "httplib", "http.client", false },
    { "markupbase", "_markupbase", false },
    { "repr", "reprlib", false },
    { "robotparser", "urllib.robotparser", false },
    { "test.test_support", "test.support", false },
    { "thread", "_thread", false },
    { "tkColorChooser", "tkinter.colorchooser", false },
    { "tkCommonDialog", "tkinter.commondialog", false },
    { "tkFileDialog", "tkinter.filedialog", false },
    { "tkFont", "tkinter.font", false },
    { "tkMessageBox", "tkinter.messagebox", false },
    { "tkSimpleDialog", "tkinter.simpledialog", false },
    { "ttk", "tkinter.ttk", false },
    { "urllib2", "urllib.request", false },
    { "urlparse", "urllib.parse", false },
    { "whichdb", "dbm", true },
    { "xmlrpclib", "xmlrpc.client", false },
};

struct name_pair {
    const char *old_module, *old_name, *new_module, *new_name;
    bool is_lossy;
};

static const struct name_pair name_pairs[] = {
    { "UserDict", "IterableUserDict", "collections", "UserDict", false },
    { "UserDict", "UserDict", "collections", "UserDict", true },
    { "UserList", "UserList", "collections", "UserList", false },
    { "UserString", "UserString", "collections", "UserString", false },
    { "__builtin__", "basestring", "builtins", "str", true },
    { "__builtin__", "intern", "sys", "intern", false },
    { "__builtin__", "long", "builtins", "int", false },
    { "__builtin__", "reduce", "functools", "reduce", false },
    { "__builtin__", "unichr", "builtins", "chr", false },
    { "__builtin__", "unicode", "builtins", "str", false },
    { "__builtin__", "xrange", "builtins", "range", false },
    { "_multiprocessing", "Connection", "multiprocessing.connection", "Connection", false },
    { "_socket", "fromfd", "socket", "fromfd", false },
    { "exceptions", "ArithmeticError", "builtins", "ArithmeticError", false },
    { "exceptions", "AssertionError", "builtins", "AssertionError", false },
    { "exceptions", "AttributeError", "builtins", "AttributeError", false },
    { "exceptions", "BaseException", "builtins", "BaseException", false },
    { "exceptions", "BufferError", "builtins", "BufferError", false },
    { "exceptions", "BytesWarning", "builtins", "BytesWarning", false },
    { "exceptions", "DeprecationWarning", "builtins", "DeprecationWarning", false },
    { "exceptions", "EOFError", "builtins", "EOFError", false },
    { "exceptions", "EnvironmentError", "builtins", "EnvironmentError", false },
    { "exceptions", "Exception", "builtins", "Exception", false },
    { "exceptions", "FloatingPointError", "builtins", "FloatingPointError", false },
    { "exceptions", "FutureWarning", "builtins", "FutureWarning", false },
    { "exceptions", "GeneratorExit", "builtins", "GeneratorExit", false },
    { "exceptions", "IOError", "builtins", "IOError", false },
    { "exceptions", "ImportError", "builtins", "ImportError", false },
    { "exceptions", "ImportWarning", "builtins", "ImportWarning", false },
    { "exceptions", "IndentationError", "builtins", "IndentationError", false },
    { "exceptions", "IndexError", "builtins", "IndexError", false },
    { "exceptions", "KeyError", "builtins", "KeyError", false },
    { "exceptions", "KeyboardInterrupt", "builtins", "KeyboardInterrupt", false },
    { "exceptions", "LookupError", "builtins", "LookupError", false },
    { "exceptions", "MemoryError", "builtins", "MemoryError", false },
    { "exceptions", "NameError", "builtins", "NameError", false },
    { "exceptions", "NotImplementedError", "builtins", "NotImplementedError", false },
    { "exceptions", "OSError", "builtins", "OSError", false },
    { "exceptions", "OverflowError", "builtins", "OverflowError", false },
    { "exceptions", "PendingDeprecationWarning", "builtins", "PendingDeprecationWarning", false },
    { "exceptions", "ReferenceError", "builtins", "ReferenceError", false },
    { "exceptions", "RuntimeError", "builtins", "RuntimeError", false },
    { "exceptions", "RuntimeWarning", "builtins", "RuntimeWarning", false },
    { "exceptions", "StandardError", "builtins", "Exception", true },
    { "exceptions", "StopIteration", "builtins", "StopIteration", false },
    { "exceptions", "SyntaxError", "builtins", "SyntaxError", false },
    { "exceptions", "SyntaxWarning", "builtins", "SyntaxWarning", false },
    { "exceptions", "SystemError", "builtins", "SystemError", false },
    { "exceptions", "SystemExit", "builtins", "SystemExit", false },
    { "exceptions", "TabError", "builtins", "TabError", false },
    { "exceptions", "TypeError", "builtins", "TypeError", false },
    { "exceptions", "UnboundLocalError", "builtins", "UnboundLocalError", false },
    { "exceptions", "UnicodeDecodeError", "builtins", "UnicodeDecodeError", false },
    { "exceptions", "UnicodeEncodeError", "builtins", "UnicodeEncodeError", false },
    { "exceptions", "UnicodeError", "builtins", "UnicodeError", false },
    { "exceptions", "UnicodeTranslateError", "builtins", "UnicodeTranslateError", false },
    { "exceptions", "UnicodeWarning", "builtins", "UnicodeWarning", false },
    { "exceptions", "UserWarning", "builtins", "UserWarning", false },
    { "exceptions", "ValueError", "builtins", "ValueError", false },
    { "exceptions", "Warning", "builtins", "Warning", false },
    { "exceptions", "ZeroDivisionError", "builtins", "ZeroDivisionError", false },
    { "itertools", "ifilter", "builtins", "filter", false },
    { "itertools", "ifilterfalse", "itertools", "filterfalse", false },
    { "itertools", "imap", "builtins", "map", false },
    { "itertools", "izip", "builtins", "zip", false },
    { "itertools", "izip_longest", "itertools", "zip_longest", false },
    { "multiprocessing", "AuthenticationError", "multiprocessing.context", "AuthenticationError", false },
    { "multiprocessing", "BufferTooShort", "multiprocessing.context", "BufferTooShort", false },
    { "multiprocessing", "ProcessError", "multiprocessing.context", "ProcessError", false },
    { "multiprocessing", "TimeoutError", "multiprocessing.context", "TimeoutError", false },
    { "multiprocessing.forking", "Popen", "multiprocessing.popen_fork", "Popen", false },
    { "multiprocessing.process", "Process", "multiprocessing.context", "Process", false },
    { "socket", "_socketobject", "socket", "SocketType", true },
    { "urllib", "ContentTooShortError", "urllib.error", "ContentTooShortError", false },
    { "urllib", "getproxies", "urllib.request", "getproxies", false },
    { "urllib", "pathname2url", "urllib.request", "pathname2url", false },
    { "urllib", "quote", "urllib.parse", "quote", false },
    { "urllib", "quote_plus", "urllib.parse", "quote_plus", false },
    { "urllib", "unquote", "urllib.parse", "unquote", false },
    { "urllib", "unquote_plus", "urllib.parse", "unquote_plus", false },
    { "urllib", "url2pathname", "urllib.request", "url2pathname", false },
    { "urllib", "urlcleanup", "urllib.request", "urlcleanup", false },
    { "urllib", "urlencode", "urllib.parse", "urlencode", false },
    { "urllib", "urlopen", "urllib.request", "urlopen", false },
    { "urllib", "urlretrieve", "urllib.request", "urlretrieve", false },
    { "urllib2", "HTTPError", "urllib.error", "HTTPError", false },
    { "urllib2", "URLError", "urllib.error", "URLError", false },
    { "whichdb", "whichdb", "dbm", "whichdb", false },
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct name_key {
    struct str module, name;
};

static int compare_module(const void *key, const void *element)
{
    const struct name_key *wanted = key;
    return str_compare(wanted->module, str_of(((const struct module_pair *)element)->old_module));
}

static int compare_name(const void *key, const void *element)
{
    const struct name_key *wanted = key;
    const struct name_pair *pair = element;
    int order = str_compare(wanted->module, str_of(pair->old_module));
    return order ? order : str_compare(wanted->name, str_of(pair->old_name));
}

void pickle_name_modernise(struct str *module, struct str *name)
{
    struct name_key key = { *module, *name };
    const struct name_pair *pair = bsearch(&key, name_pairs, COUNT(name_pairs), sizeof(name_pairs[0]), compare_name);
    if (pair) {
        *module = str_of(pair->new_module);
        *name = str_of(pair->new_name);
        return;
    }
    const struct module_pair *found = bsearch(&key, module_pairs, COUNT(module_pairs), sizeof(module_pairs[0]), compare_module);
    if (found)
        *module = str_of(found->new_module);
}

static bool age_pair(struct str *module, struct str *name)
{
    for (size_t i = 0; i < COUNT(name_pairs); i++) {
        const struct name_pair *pair = &name_pairs[i];
        if (!pair->is_lossy && str_is(*module, pair->new_module) && str_is(*name, pair->new_name)) {
            *module = str_of(pair->old_module);
            *name = str_of(pair->old_name);
            return true;
        }
    }
    for (size_t i = 0; i < COUNT(module_pairs); i++) {
        if (!module_pairs[i].is_lossy && str_is(*module, module_pairs[i].new_module)) {
            *module = str_of(module_pairs[i].old_module);
            return true;
        }
    }
    return false;
}

void pickle_name_age(struct str *module, struct str *name)
{
    struct str old_module = *module, old_name = *name;
    if (!age_pair(&old_module, &old_name))
        return;
    struct str new_module = old_module, new_name = old_name;
    pickle_name_modernise(&new_module, &new_name);
    if (str_equal(new_module, *module) && str_equal(new_name, *name)) {
        *module = old_module;
        *name = old_name;
    }
}
